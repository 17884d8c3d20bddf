// Before the first paint: light or dark, as chosen here or by the system.
(() => {
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = "system";
  try {
    chosen = localStorage.getItem("meshnet.theme") ?? "system";
  } catch {
    // Storage is forbidden: the system's choice it is.
  }
  const apply = () => {
    const dark = chosen === "dark" || (chosen !== "light" && system.matches);
    document.documentElement.dataset.theme = dark ? "dark" : "light";
  };
  apply();
  system.addEventListener("change", apply);
  addEventListener("meshnet-theme", ({ detail }) => { chosen = detail; apply(); });
})();

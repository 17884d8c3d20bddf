// Making elements, and what several views share.

/** Make an element: attributes, `on…` listeners, and children (text, elements, or nothing). */
export function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export const icon = (name) =>
  svg("svg", { class: "i", "aria-hidden": "true" }, svg("use", { href: `#i-${name}` }));

export const by = (id) => document.getElementById(id);

/** A button with an icon and a name that is read, but not seen. */
export const iconButton = (name, label, onclick, attributes = {}) =>
  make("button", { type: "button", class: "icon", "aria-label": label, title: label, onclick, ...attributes }, icon(name));

let toastEnds = 0;

/** Say something at the bottom for some seconds, with one thing to do about it. */
export function toast(text, label = null, act = null) {
  const box = by("toast");
  const hide = () => box.classList.remove("shown");
  box.replaceChildren(text);
  if (label) {
    box.append(make("button", { type: "button", onclick: () => { hide(); act(); } }, label));
  }
  box.classList.add("shown");
  clearTimeout(toastEnds);
  toastEnds = setTimeout(hide, 6000);
}

/** Put text on the clipboard, also where the page came by plain HTTP from another machine. */
export async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const box = make("textarea", { class: "hidden" });
    box.value = text;
    document.body.append(box);
    box.select();
    document.execCommand("copy");
    box.remove();
    button.focus();
  }
  const shown = button.querySelector("svg");
  const done = icon("check");
  shown.replaceWith(done);
  by("said").textContent = "Copied";
  setTimeout(() => done.replaceWith(shown), 1400);
}

export function bytes(count) {
  let size = count;
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (size < 1000) return `${unit === "B" || size >= 100 ? Math.round(size) : size.toFixed(1)} ${unit}`;
    size /= 1000;
  }
  return `${size.toFixed(1)} TB`;
}

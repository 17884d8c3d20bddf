// The page: puts its parts together, and what belongs to none of them (views, theme, shortcuts).

import { Answering } from "./answering.js";
import { Conversation } from "./conversation.js";
import { by, icon, iconButton, make, toast } from "./dom.js";
import { Mesh } from "./mesh.js";
import { Chats, NUMBERS, keepParameters, local, parameters } from "./store.js";

const IDEAS = [
  "Explain in three sentences what a KV cache is.",
  "Write a haiku about computers that think together.",
  "Give me a small Python function that reverses a linked list.",
  "List three reasons to run a language model at home.",
];
const THEMES = ["system", "light", "dark"];

const chats = new Chats();
const answering = new Answering(chats);
const conversation = new Conversation(chats, answering);

function open(chat) {
  conversation.show(chat);
  list();
  side(false);
}

function list() {
  by("chats").replaceChildren(...chats.all.map((chat) =>
    make("li", {},
      make("button", { class: "chat", type: "button", title: chat.title, "aria-current": chat === chats.open ? "true" : null, onclick: () => open(chat) }, make("span", {}, chat.title)),
      iconButton("bin", `Delete the chat ${chat.title}`, () => remove(chat), { class: "icon bin" }))));
}

function remove(chat) {
  answering.stop(chat);
  const restore = chats.remove(chat);
  if (chat === chats.open) open(chats.begin());
  else list();
  toast("Chat deleted", "Undo", () => { restore(); open(chat); });
}

function begin() {
  open(chats.begin());
  view("chat");
  by("text").focus();
}

function side(isOpen) {
  by("side").classList.toggle("open", isOpen);
  by("shade").hidden = !isOpen;
}

const isPhone = () => matchMedia("(max-width: 860px)").matches;

function view(name) {
  by("app").dataset.view = name;
  for (const tab of by("tabs").children) {
    if (tab.dataset.to === name) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
  }
}

function theme(chosen) {
  local.set("meshnet.theme", chosen);
  dispatchEvent(new CustomEvent("meshnet-theme", { detail: chosen }));
  const label = `Theme: ${chosen === "system" ? "as the system's" : chosen}`;
  by("theme").replaceChildren(icon({ system: "auto", light: "sun", dark: "moon" }[chosen]));
  by("theme").setAttribute("aria-label", label);
  by("theme").title = label;
}

function settings() {
  const kept = parameters();
  by("p-system").value = kept.system;
  for (const name of NUMBERS) by(`p-${name}`).value = kept[name] ?? "";
  by("settings").showModal();
}

function keep() {
  const values = { system: by("p-system").value.trim() };
  for (const name of NUMBERS) {
    const number = by(`p-${name}`).valueAsNumber;
    if (Number.isFinite(number)) values[name] = number;
  }
  keepParameters(values);
}

function wire() {
  by("new").append(icon("plus"), "New chat");
  by("new").addEventListener("click", begin);
  by("tune").append(icon("tune"), "Parameters");
  by("tune").addEventListener("click", settings);
  by("settings").querySelector("form").addEventListener("submit", keep);
  by("p-reset").addEventListener("click", () => by("settings").querySelector("form").reset());
  by("side-open").append(icon("menu"));
  by("side-open").addEventListener("click", () => side(true));
  by("side-close").append(icon("close"));
  by("side-close").addEventListener("click", () => side(false));
  by("shade").addEventListener("click", () => side(false));
  by("theme").addEventListener("click", () => {
    const now = local.get("meshnet.theme") ?? "system";
    theme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
  });
  by("pulse").addEventListener("click", () => {
    if (isPhone()) view("mesh");
    else by("app").classList.toggle("no-mesh");
  });
  const [chatTab, meshTab] = by("tabs").children;
  chatTab.append(icon("chat"), "Chat");
  meshTab.append(icon("mesh"), "Mesh");
  for (const tab of by("tabs").children) tab.addEventListener("click", () => view(tab.dataset.to));
  by("ideas").append(...IDEAS.map((idea) => make("li", {}, make("button", { type: "button", onclick: () => conversation.say(idea) }, idea))));
  answering.addEventListener("begin", list);
  chats.follow((chat) => answering.isBusy(chat), (changed) => {
    list();
    if (changed.has(chats.open)) conversation.show(chats.open);
  });
  addEventListener("keydown", (event) => {
    if (document.querySelector("dialog[open]")) return;
    if (event.key === "Escape") {
      side(false);
      conversation.stop();
    }
    if (event.key.toLowerCase() === "o" && event.shiftKey && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      begin();
    }
  });
}

wire();
theme(local.get("meshnet.theme") ?? "system");
open(chats.begin());
if (!isPhone()) by("text").focus();
new Mesh().run();

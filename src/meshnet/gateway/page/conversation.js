// The chat that is open: its messages, what can be done with each, and the field for the next one.

import { by, copy, icon, iconButton, make } from "./dom.js";
import { Markdown } from "./markdown.js";

const NEAR_PX = 80;

export class Conversation {
  constructor(chats, answering) {
    this.chats = chats;
    this.answering = answering;
    this.shown = new Map();
    this.due = new Set();
    this.follows = true;
    answering.addEventListener("change", ({ detail }) => this.#changed(detail.chat, detail.message));
    const scroll = by("scroll");
    scroll.addEventListener("scroll", () => {
      this.follows = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < NEAR_PX;
      by("latest").hidden = this.follows;
    });
    by("latest").append(icon("down"));
    by("latest").addEventListener("click", () => this.#toEnd(true));
    by("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.answering.isBusy(this.chats.open)) this.stop();
      else this.#send();
    });
    const text = by("text");
    text.addEventListener("input", () => this.#fit());
    text.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.answering.isBusy(this.chats.open)) this.#send();
    });
  }

  show(chat) {
    this.chats.open = chat;
    this.shown.clear();
    by("messages").replaceChildren(...chat.messages.map((message) => this.#made(chat, message)));
    by("title").textContent = chat.title;
    by("empty").hidden = chat.messages.length > 0;
    by("messages").hidden = chat.messages.length === 0;
    this.follows = true;
    this.#toEnd();
    this.#fit();
  }

  say(text) {
    const chat = this.chats.open;
    this.chats.add(chat, { role: "user", content: text });
    this.show(chat);
    this.answering.answer(chat);
  }

  stop() {
    this.answering.stop(this.chats.open);
  }

  #send() {
    const text = by("text").value.trim();
    if (!text) return;
    by("text").value = "";
    this.say(text);
  }

  /** Let the field grow with its text, and its button say what it does. */
  #fit() {
    const text = by("text");
    text.style.height = "auto";
    text.style.height = `${text.scrollHeight}px`;
    const busy = this.answering.isBusy(this.chats.open);
    const button = by("send");
    button.disabled = !busy && !text.value.trim();
    if (button.dataset.busy === String(busy)) return;
    button.dataset.busy = String(busy);
    button.setAttribute("aria-label", busy ? "Stop the answer" : "Send");
    button.replaceChildren(icon(busy ? "stop" : "send"));
  }

  #changed(chat, message) {
    if (chat !== this.chats.open) return;
    if (!this.shown.has(message)) {
      by("messages").append(this.#made(chat, message));
      this.#fit();
    }
    if (this.due.size === 0) requestAnimationFrame(() => this.#paint());
    this.due.add(message);
  }

  #paint() {
    const chat = this.chats.open;
    for (const message of this.due) {
      const view = this.shown.get(message);
      if (view) this.#fill(chat, message, view);
    }
    this.due.clear();
    this.#fit();
    if (this.follows) this.#toEnd();
  }

  #toEnd(smoothly = false) {
    by("scroll").scrollTo({ top: by("scroll").scrollHeight, behavior: smoothly ? "smooth" : "instant" });
  }

  #made(chat, message) {
    const body = make("div", { class: message.role === "user" ? "body" : "body prose" });
    const tools = make("div", { class: "tools" });
    const who = message.role === "user" ? "You" : "The model";
    const item = make("li", { class: `message ${message.role}` }, make("span", { class: "hidden" }, `${who} said:`), body, tools);
    const view = { item, body, tools, markdown: new Markdown(body) };
    this.shown.set(message, view);
    this.#fill(chat, message, view);
    return item;
  }

  #fill(chat, message, view) {
    const busy = this.answering.isBusy(chat) && message === chat.messages.at(-1);
    view.item.classList.toggle("busy", busy);
    view.item.setAttribute("aria-busy", String(busy));
    if (message.role === "user") view.body.textContent = message.content;
    else view.markdown.show(message.content);
    if (message.thought) this.#think(message, view);
    view.item.querySelector(".failed")?.remove();
    if (message.error) view.tools.before(this.#failure(chat, message));
    view.tools.replaceChildren(...(busy ? [] : this.#tools(chat, message, view)));
    if (!busy && view.wasBusy) by("said").textContent = message.error ?? "The answer is complete.";
    view.wasBusy = busy;
  }

  /** What a model thought before it answered, folded away. */
  #think(message, view) {
    if (!view.thought) {
      view.thought = make("p", {});
      view.body.before(make("details", { class: "thought" }, make("summary", {}, "Thoughts"), view.thought));
    }
    view.thought.textContent = message.thought.trim();
  }

  #failure(chat, message) {
    const again = make("button", { type: "button", onclick: () => this.#again(chat, message) }, "Try again");
    return make("div", { class: "failed", role: "alert" }, message.error, again);
  }

  #tools(chat, message, view) {
    const copying = iconButton("copy", "Copy", (event) => copy(message.content, event.currentTarget));
    if (message.role === "user") {
      return [iconButton("edit", "Edit, and ask again from here", () => this.#edit(chat, message, view)), copying];
    }
    const again = iconButton("redo", "Answer again", () => this.#again(chat, message));
    return [message.content ? copying : null, again, statistics(message)].filter(Boolean);
  }

  #again(chat, message) {
    if (this.answering.isBusy(chat)) return;
    chat.messages.length = chat.messages.indexOf(message);
    this.show(chat);
    this.answering.answer(chat);
  }

  #edit(chat, message, view) {
    if (this.answering.isBusy(chat)) return;
    const field = make("textarea", { "aria-label": "Your message", rows: "3" });
    field.value = message.content;
    const cancel = () => { this.show(chat); by("text").focus(); };
    const send = () => {
      const text = field.value.trim();
      if (!text) return;
      chat.messages.length = chat.messages.indexOf(message);
      this.say(text);
      by("text").focus();
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { event.stopPropagation(); cancel(); }
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
    });
    const row = make("div", { class: "row" },
      make("button", { type: "button", class: "quiet", onclick: cancel }, "Cancel"),
      make("button", { type: "button", class: "primary", onclick: send }, "Ask again"));
    view.item.replaceChildren(make("div", { class: "edit" }, field, row));
    field.focus();
  }
}

function statistics({ stats, stopped, cut }) {
  const facts = [];
  if (stopped) facts.push("stopped");
  if (stats) {
    facts.push(`${stats.tokens} ${stats.tokens === 1 ? "token" : "tokens"}`);
    if (stats.rate) facts.push(`${stats.rate.toFixed(1)} tokens/s`);
    if (stats.first_s !== null) facts.push(`first after ${stats.first_s.toFixed(2)} s`);
  }
  if (cut) facts.push("ended at the most tokens");
  if (facts.length === 0) return null;
  return make("span", { class: "stats" }, ...facts.map((fact) => make("span", {}, fact)));
}

// Chats and parameters, kept in this browser and nowhere else.

const CHATS = "meshnet.chats";
const PARAMETERS = "meshnet.parameters";
const CHATS_MAX = 100;
const TITLE_MAX = 60;

function read(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

const isMessage = (each) =>
  (each?.role === "user" || each?.role === "assistant") && typeof each.content === "string";

const isChat = (each) =>
  typeof each?.id === "string" && Array.isArray(each.messages) && each.messages.every(isMessage);

export class Chats {
  constructor() {
    const found = read(CHATS, []);
    this.all = (Array.isArray(found) ? found : []).filter(isChat);
    this.open = null;
  }

  get(id) {
    return this.all.find((chat) => chat.id === id);
  }

  /** A new chat; it is kept once it has a message. */
  begin() {
    this.open = { id: crypto.getRandomValues(new Uint32Array(3)).join("-"), title: "New chat", messages: [] };
    return this.open;
  }

  add(chat, message) {
    chat.messages.push(message);
    if (chat.messages.length === 1) {
      const line = message.content.trim().split("\n", 1)[0];
      chat.title = line.length > TITLE_MAX ? `${line.slice(0, TITLE_MAX)}…` : line || "New chat";
    }
    this.all = [chat, ...this.all.filter((each) => each !== chat)].slice(0, CHATS_MAX);
    this.save();
  }

  remove(chat) {
    const at = this.all.indexOf(chat);
    this.all.splice(at, 1);
    this.save();
    return () => {
      this.all.splice(at, 0, chat);
      this.save();
    };
  }

  /** Write them all; the oldest make room where the browser has no more. */
  save() {
    for (let count = this.all.length; count > 0; count = Math.floor(count / 2)) {
      try {
        localStorage.setItem(CHATS, JSON.stringify(this.all.slice(0, count)));
        return;
      } catch {
        // Too much, or not allowed.
      }
    }
    if (this.all.length === 0) localStorage.removeItem(CHATS);
  }
}

export const NUMBERS = ["temperature", "top_p", "max_tokens", "seed"];

export const parameters = () => {
  const found = read(PARAMETERS, {});
  const kept = { system: typeof found.system === "string" ? found.system : "" };
  for (const name of NUMBERS) if (Number.isFinite(found[name])) kept[name] = found[name];
  return kept;
};

export const keepParameters = (values) => localStorage.setItem(PARAMETERS, JSON.stringify(values));

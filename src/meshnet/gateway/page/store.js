// Chats and parameters, kept in this browser and nowhere else.

const CHATS = "meshnet.chats";
const REMOVED = "meshnet.removed";
const PARAMETERS = "meshnet.parameters";
const CHATS_MAX = 100;
const TITLE_MAX = 60;

/** A storage of the browser; what it does not take, for it is full or forbidden, ends with the page. */
function kept(name) {
  const own = new Map();
  return {
    get(key) {
      if (own.has(key)) return own.get(key);
      try {
        return globalThis[name].getItem(key);
      } catch {
        return null;
      }
    },
    /** Tell whether the browser keeps it. */
    set(key, value) {
      try {
        globalThis[name].setItem(key, value);
        own.delete(key);
        return true;
      } catch {
        own.set(key, value);
        return false;
      }
    },
  };
}

export const local = kept("localStorage");
export const session = kept("sessionStorage");

function parsed(text, otherwise) {
  try {
    return JSON.parse(text) ?? otherwise;
  } catch {
    return otherwise;
  }
}

const isMessage = (each) =>
  (each?.role === "user" || each?.role === "assistant") && typeof each.content === "string";

const isChat = (each) =>
  typeof each?.id === "string" && Array.isArray(each.messages) && each.messages.every(isMessage);

function chatsIn(text) {
  const found = parsed(text, []);
  return (Array.isArray(found) ? found : []).filter(isChat);
}

/** When something was said last. */
const at = (chat) => (Number.isFinite(chat.at) ? chat.at : 0);

/** Whether `theirs` went on after `ours`: something was said later, or more of an answer is there. */
const isLater = (theirs, ours) =>
  (at(theirs) - at(ours) || JSON.stringify(theirs).length - JSON.stringify(ours).length) > 0;

export class Chats {
  constructor() {
    this.all = chatsIn(local.get(CHATS));
    this.open = null;
  }

  /** Take over what other tabs keep and delete, but for chats that are busy here; tell `seen` which changed. */
  follow(isBusy, seen) {
    addEventListener("storage", ({ key, newValue }) => {
      if (key === REMOVED) {
        const [id] = (newValue ?? "").split(" ");
        this.all = this.all.filter((chat) => chat.id !== id || isBusy(chat));
        seen(new Set());
      } else if (key === CHATS) {
        seen(this.#merge(chatsIn(newValue), isBusy));
      }
    });
  }

  /** Whoever holds a chat holds on to the same object. */
  #merge(found, isBusy) {
    const changed = new Set();
    for (const theirs of found) {
      const ours = this.get(theirs.id) ?? (this.open?.id === theirs.id ? this.open : theirs);
      if (!this.all.includes(ours)) this.all.push(ours);
      if (isBusy(ours) || !isLater(theirs, ours)) continue;
      Object.assign(ours, theirs);
      changed.add(ours);
    }
    this.all = this.all.sort((one, other) => at(other) - at(one)).slice(0, CHATS_MAX);
    return changed;
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
    chat.at = Date.now();
    if (chat.messages.length === 1) {
      const line = message.content.trim().split("\n", 1)[0];
      chat.title = line.length > TITLE_MAX ? `${line.slice(0, TITLE_MAX)}…` : line || "New chat";
    }
    this.all = [chat, ...this.all.filter((each) => each.id !== chat.id)].slice(0, CHATS_MAX);
    this.save();
  }

  remove(chat) {
    const place = this.all.indexOf(chat);
    if (place < 0) return () => {};
    this.all.splice(place, 1);
    local.set(REMOVED, `${chat.id} ${Date.now()}`);
    this.save();
    return () => {
      if (!this.get(chat.id)) this.all.splice(place, 0, chat);
      this.save();
    };
  }

  /** Write them all; the oldest make room where the browser has no more. */
  save() {
    let count = this.all.length;
    while (!local.set(CHATS, JSON.stringify(this.all.slice(0, count))) && count > 1) {
      count = Math.floor(count / 2);
    }
  }
}

export const NUMBERS = ["temperature", "top_p", "max_tokens", "seed"];

export const parameters = () => {
  const found = parsed(local.get(PARAMETERS), {});
  const kept = { system: typeof found.system === "string" ? found.system : "" };
  for (const name of NUMBERS) if (Number.isFinite(found[name])) kept[name] = found[name];
  return kept;
};

export const keepParameters = (values) => local.set(PARAMETERS, JSON.stringify(values));

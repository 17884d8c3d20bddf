// Answers that are being made: one a chat at most, each with its own way to stop it.

import { chat as ask } from "./api.js";
import { parameters } from "./store.js";

const SAVE_MS = 1000;

export class Answering extends EventTarget {
  constructor(chats) {
    super();
    this.chats = chats;
    this.running = new Map();
  }

  isBusy(chat) {
    return this.running.has(chat.id);
  }

  stop(chat) {
    this.running.get(chat.id)?.abort();
  }

  /** Let the model answer what was said so far. */
  async answer(chat) {
    const said = chat.messages.map(({ role, content }) => ({ role, content }));
    const message = { role: "assistant", content: "" };
    const stop = new AbortController();
    this.running.set(chat.id, stop);
    this.chats.add(chat, message);
    this.dispatchEvent(new Event("begin"));
    this.#tell(chat, message);
    try {
      await this.#take(chat, message, said, stop.signal);
    } catch (error) {
      if (stop.signal.aborted) message.stopped = true;
      else message.error = error.message || "Something failed.";
    } finally {
      this.running.delete(chat.id);
      this.chats.save();
      this.#tell(chat, message);
    }
  }

  async #take(chat, message, said, signal) {
    const { system, ...numbers } = parameters();
    const messages = system ? [{ role: "system", content: system }, ...said] : said;
    const began = performance.now();
    let first = null;
    let last = began;
    let savedAt = began;
    for await (const chunk of ask(messages, numbers, signal)) {
      const choice = chunk.choices[0];
      const { content = "", reasoning_content: thought = "" } = choice?.delta ?? {};
      if (content || thought) {
        last = performance.now();
        first ??= last;
        message.content += content ?? "";
        if (thought) message.thought = (message.thought ?? "") + thought;
        this.#tell(chat, message);
      }
      if (choice?.finish_reason === "length") message.cut = true;
      if (chunk.usage) message.stats = figures(chunk.usage, began, first, last);
      if (last - savedAt > SAVE_MS) {
        savedAt = last;
        this.chats.save();
      }
    }
  }

  #tell(chat, message) {
    this.dispatchEvent(new CustomEvent("change", { detail: { chat, message } }));
  }
}

function figures(usage, began, first, last) {
  const tokens = usage.completion_tokens;
  const rate = first !== null && tokens > 1 && last > first ? ((tokens - 1) * 1000) / (last - first) : null;
  return { tokens, rate, first_s: first === null ? null : (first - began) / 1000 };
}

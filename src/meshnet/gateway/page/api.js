// The gateway as this page sees it: the same HTTP API as everybody's, and one key for all of it.

import { by } from "./dom.js";
import { session } from "./store.js";

const KEY = "meshnet.key";
const FRAME_MAX = 4_000_000;
/** What a header can carry; with anything else no request leaves this page. */
const SENDABLE = /^[\x20-\x7e]*$/;

export class ApiError extends Error {
  constructor(message, status, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

let asking = null;

/** Ask for a key, once for all requests that wait for one. */
function askForKey() {
  asking ??= new Promise((resolve) => {
    const dialog = by("key");
    by("key-wrong").hidden = session.get(KEY) === null;
    by("key-text").value = "";
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    dialog.addEventListener("close", () => {
      const key = by("key-text").value.trim();
      session.set(KEY, SENDABLE.test(key) ? key : "");
      by("key-text").value = "";
      asking = null;
      resolve();
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}

/** Request `path`; where a key is missing or refused, ask for another one. Throws ApiError. */
export async function call(path, options = {}) {
  for (;;) {
    const key = session.get(KEY);
    const headers = { ...options.headers };
    if (key) headers.authorization = `Bearer ${key}`;
    const response = await fetch(path, { ...options, headers });
    if (response.ok) return response;
    if (response.status !== 401) throw await refusal(response);
    if (key === session.get(KEY)) await askForKey();
  }
}

async function refusal(response) {
  let told = null;
  try {
    told = (await response.json()).error;
  } catch {
    // Something between us and the gateway answered.
  }
  const message = told?.message ?? `The server answered ${response.status}.`;
  return new ApiError(message, response.status, told?.code ?? null);
}

/** Yield the JSON of each server-sent event until `[DONE]`. Throws ApiError if the stream breaks. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new ApiError("The connection ended before the answer did.", 0, "cut_off");
      const frames = (rest + value).split("\n\n");
      rest = frames.pop();
      if (rest.length > FRAME_MAX) throw new ApiError("The server sent something endless.", 0, "too_long");
      for (const frame of frames) {
        if (!frame.startsWith("data: ")) continue;
        if (frame === "data: [DONE]") return;
        yield JSON.parse(frame.slice(6));
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Yield the chunks of an answer. Aborting `signal` stops it, here and on the nodes. */
export async function* chat(messages, parameters, signal) {
  const body = { model: "default", messages, stream: true, stream_options: { include_usage: true }, ...parameters };
  const response = await call("/v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  for await (const chunk of events(response)) {
    if (chunk.error) throw new ApiError(chunk.error.message, 0, chunk.error.code);
    yield chunk;
  }
}

// A model's text as Markdown, while it grows. Whatever it says, it is text: markup of its own is
// shown, not obeyed, and what is made of it is sanitised besides.

import DOMPurify from "./vendor/purify.js";
import { Marked } from "./vendor/marked.js";
import { copy, icon, make } from "./dom.js";

const escape = (text) =>
  text.replace(/[&<>"']/g, (each) => `&#${each.charCodeAt(0)};`);

const marked = new Marked({ gfm: true, breaks: true, renderer: { html: ({ text }) => escape(text) } });

const ALLOWED = {
  RETURN_TRUSTED_TYPE: true,
  ALLOWED_TAGS: [
    "p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "strong", "em", "del", "code", "pre",
    "blockquote", "ul", "ol", "li", "table", "thead", "tbody", "tr", "th", "td", "a", "input",
  ],
  ALLOWED_ATTR: ["href", "title", "class", "start", "type", "checked", "disabled", "align"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
};

/** Nothing is fetched because a model names it: an image becomes a link to it. */
function imageToLink(token) {
  if (token.type !== "image") return;
  const text = token.text || token.href;
  Object.assign(token, { type: "link", tokens: [{ type: "text", raw: text, text }] });
}

function decorate(block) {
  for (const link of block.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer nofollow";
  }
  for (const box of block.querySelectorAll("input")) box.disabled = true;
  for (const table of block.querySelectorAll("table")) {
    const frame = make("div", { class: "table", tabindex: "0" });
    table.replaceWith(frame);
    frame.append(table);
  }
  for (const code of block.querySelectorAll("pre > code")) {
    const language = /language-([\w+#-]+)/.exec(code.className)?.[1] ?? "text";
    const button = make("button", { type: "button", "aria-label": "Copy this code" }, icon("copy"), "Copy");
    button.addEventListener("click", () => copy(code.textContent, button));
    code.tabIndex = 0;
    code.before(make("div", { class: "code-head" }, language, button));
  }
}

/** Shows a text in `container`; of a longer one only the blocks that changed are made anew. */
export class Markdown {
  constructor(container) {
    this.container = container;
    this.blocks = [];
  }

  show(text) {
    const tokens = marked.lexer(text);
    marked.walkTokens(tokens, imageToLink);
    let same = 0;
    while (same < tokens.length && this.blocks[same]?.raw === tokens[same].raw) same += 1;
    for (const block of this.blocks.splice(same)) block.nodes.forEach((node) => node.remove());
    for (const token of tokens.slice(same)) {
      const only = Object.assign([token], { links: tokens.links });
      const made = make("div");
      made.innerHTML = DOMPurify.sanitize(marked.parser(only), ALLOWED);
      decorate(made);
      const nodes = [...made.childNodes];
      this.container.append(...nodes);
      this.blocks.push({ raw: token.raw, nodes });
    }
  }
}

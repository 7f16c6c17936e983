// Reads the page as a person does, without a browser: just as much of a document as the page uses. Prints what stands in it after each step.
//
//   node page_reader.mjs FOLDER URL STEPS      FOLDER has index.html and the scripts; STEPS is JSON: [what, value], …
//   ["go", "#/…"]   ["search", "text"]   ["press", "key"]   ["write", [id, text]]   ["submit", ""]   ["choose", [id, value]]   ["follow", "text"]
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

class Element extends EventTarget {
  constructor(name) { super(); this.tagName = name.toUpperCase(); this.attributes = {}; this.childNodes = []; this.parent = null; this.written = null; this.checked = false; }
  setAttribute(name, value) { this.attributes[name] = value; }
  append(...parts) { for (const part of parts) { if (part instanceof Element) part.parent = this; this.childNodes.push(part); } }
  replaceChildren(...parts) { this.childNodes = []; this.append(...parts); }
  get textContent() { return this.childNodes.map((part) => (part instanceof Element ? part.textContent : String(part))).join(" "); }
  set textContent(text) { this.childNodes = [text]; }
  all(name) { return this.childNodes.filter((part) => part instanceof Element).flatMap((part) => [...(part.tagName === name.toUpperCase() ? [part] : []), ...part.all(name)]); }
  querySelectorAll(name) { return this.all(name); }
  querySelector(name) { return this.all(name)[0] || null; }
  get value() {
    if (this.written !== null) return this.written;
    if (this.tagName !== "SELECT") return this.tagName === "TEXTAREA" ? this.textContent : "";
    const options = this.all("option");
    return (options.find((option) => "selected" in option.attributes) || options[0]).attributes.value;
  }
  set value(text) { this.written = text; }
  focus() { document.activeElement = this; }
}
const [folder, base, steps] = process.argv.slice(2);
const named = {};
for (const [, name, id] of readFileSync(`${folder}/index.html`, "utf8").matchAll(/<(\w+)[^>]* id="(\w+)"/g)) named[id] = Object.assign(new Element(name), { attributes: { id } });
const below = (root, id) => root.attributes.id === id ? root : root.childNodes.filter((part) => part instanceof Element).map((part) => below(part, id)).find(Boolean);
globalThis.document = Object.assign(new EventTarget(), {
  title: "", activeElement: null, createElement: (name) => new Element(name),
  getElementById: (id) => named[id] || Object.values(named).map((root) => below(root, id)).find(Boolean) || null,
});
globalThis.window = new EventTarget();
globalThis.location = { text: "", get hash() { return this.text; }, set hash(text) { this.text = text; window.dispatchEvent(new Event("hashchange")); } };
let pending = 0;
const fetched = globalThis.fetch;
globalThis.fetch = (to, options) => { pending += 1; return fetched(new URL(to, `${base}/ui/`), options).finally(() => { pending -= 1; }); };
const quiet = async () => { for (let still = 0; still < 4; still = pending ? 0 : still + 1) await new Promise((wake) => setTimeout(wake, 5)); };
const key = (name) => Object.assign(new Event("keydown", { cancelable: true }), { key: name });

await import(pathToFileURL(`${folder}/registry.js`));
const said = [];
for (const [what, value] of [["go", ""], ...JSON.parse(steps)]) {
  if (what === "go" && value) location.hash = value;
  if (what === "search") { named.search.value = value; named.search.dispatchEvent(new Event("input")); }
  if (what === "press") (named.subjects.all("a").includes(document.activeElement) ? named.subjects : document.activeElement === named.search ? named.search : document).dispatchEvent(key(value));
  if (what === "follow") location.hash = named.content.all("a").findLast((part) => part.textContent === value).attributes.href;
  if (what === "write") document.getElementById(value[0]).value = value[1];
  if (what === "choose") { const chosen = document.getElementById(value[0]); chosen.value = value[1]; let up = chosen; while ((up = up.parent)) up.dispatchEvent(new Event("change")); }
  if (what === "submit") named.content.querySelector("form").dispatchEvent(new Event("submit", { cancelable: true }));
  await quiet();
  const text = (part) => part.textContent.replace(/\s+/g, " ").trim();
  said.push({ title: document.title, content: text(named.content), list: named.subjects.all("a").map(text), count: text(named.count), focus: document.activeElement && text(document.activeElement), hash: location.hash });
}
process.stdout.write(JSON.stringify(said));
process.exit(0);

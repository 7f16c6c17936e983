// The components of every page of ours. What users wrote is put in as text and never as HTML, so it can be nothing else.

// An element: its name, its attributes (a function is a listener), and what is in it: texts, elements, lists of these; null is nothing.
export function element(name, attributes = {}, ...content) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") made.addEventListener(key, value);
    else made.setAttribute(key, value === true ? "" : String(value));
  }
  made.append(...content.flat(Infinity).filter((part) => part !== null && part !== undefined));
  return made;
}

export const link = (to, text, attributes = {}) => element("a", { href: to, ...attributes }, text);

export const facts = (pairs) =>
  element("table", { class: "facts-table" }, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").map(
    ([name, value]) => element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, value))));

export const table = (heads, rows) =>
  element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Table" },
    element("table", {}, element("thead", {}, element("tr", {}, heads.map((head) => element("th", { scope: "col" }, head)))),
      element("tbody", {}, rows.map(({ kind, cells }) => element("tr", { class: kind }, cells.map((cell) => element("td", {}, cell)))))));

// Tabs are links, so that each is a place to come back to: [[address, text], …].
export const tabs = (entries, current) =>
  element("nav", { class: "tabs", "aria-label": "Views" }, entries.map(
    ([to, text]) => link(to, text, { "aria-current": to === current ? "page" : null })));

export const choice = (label, name, options, chosen) =>
  element("div", {}, element("label", { for: name }, label),
    element("select", { id: name, name }, options.map((option) => element("option", { value: option, selected: String(option) === String(chosen) }, String(option)))));

export const problem = (error) => element("p", { class: "problem", role: "alert" }, error.message || String(error));

// What a service answers as JSON; its own words where it refuses.
export async function ask(path, options = {}) {
  const answer = await fetch(path, { headers: { Accept: "application/json", ...(options.body ? { "Content-Type": "application/json" } : {}) }, ...options });
  const found = await answer.json().catch(() => null);
  if (!answer.ok) throw Object.assign(new Error((found && found.message) || `HTTP ${answer.status}`), { status: answer.status });
  return found;
}

// `/` leads to the search, Escape empties it, arrows go through the list of links below it.
export function keys(search, list) {
  document.addEventListener("keydown", (event) => {
    const typing = ["INPUT", "TEXTAREA", "SELECT"].includes(document.activeElement?.tagName);
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) { event.preventDefault(); search.focus(); }
  });
  search.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") { event.preventDefault(); list.querySelector("a")?.focus(); }
    if (event.key === "Escape") { search.value = ""; search.dispatchEvent(new Event("input")); }
  });
  list.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    const links = [...list.querySelectorAll("a")];
    const next = links.indexOf(document.activeElement) + (event.key === "ArrowDown" ? 1 : -1);
    event.preventDefault();
    (next < 0 ? search : links[Math.min(next, links.length - 1)])?.focus();
  });
}

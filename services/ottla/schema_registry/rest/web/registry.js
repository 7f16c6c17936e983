// The page of the schema registry: subjects, versions, differences, compatibility. It reads, and changes nothing.
//
// A place is in the address after #: /subjects/NAME, /subjects/NAME/versions/2, …/diff/1/2, …/check, /ids/7, /ids/7/:.CONTEXT:.
import { ask, choice, element, facts, keys, link, problem, table, tabs } from "./components.js";

const SHOWN = 500; // of the list; the search finds the rest
const at = (id) => document.getElementById(id);
const path = (...parts) => "../" + parts.map(encodeURIComponent).join("/");
const place = (...parts) => "#/" + parts.map(encodeURIComponent).join("/");
let subjects = [];

function listed() {
  const wanted = at("search").value.trim().toLowerCase();
  const found = subjects.filter((name) => name.toLowerCase().includes(wanted));
  const [kind, current] = parts();
  const entries = found.slice(0, SHOWN).map((name) =>
    element("li", {}, link(place("subjects", name), name, { "aria-current": kind === "subjects" && name === current ? "true" : null })));
  if (/^#?\d+$/.test(wanted)) entries.unshift(element("li", {}, link(place("ids", wanted.replace("#", "")), `the id ${wanted.replace("#", "")}`)));
  at("subjects").replaceChildren(...entries);
  at("count").textContent = found.length > SHOWN ? `${SHOWN} of ${found.length} are shown` : `${found.length} ${found.length === 1 ? "subject" : "subjects"}`;
}

async function load() {
  try {
    subjects = await ask(`../subjects?subjectPrefix=${encodeURIComponent(":*:")}&deleted=${at("deleted").checked}`);
    listed();
  } catch (error) {
    at("count").replaceChildren(problem(error));
  }
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // an address that a person has typed
  }
}
const parts = () => location.hash.replace(/^#\/?/, "").split("/").map(decoded);

// JSON with lines and indents; what it says stays as it is written, for a number may have more digits than a script's have.
function pretty(text) {
  try {
    JSON.parse(text);
  } catch {
    return text; // Protobuf
  }
  let depth = 0;
  const line = () => "\n" + "  ".repeat(depth);
  return text.replace(/"[^"\\]*(?:\\.[^"\\]*)*"|[{[]\s*[\]}]|[{[]|[\]}]|[:,]|\s+/g, (part) => {
    if (!part.trim()) return "";
    if (part === ":" || part === ",") return part === ":" ? ": " : part + line();
    if (part === "{" || part === "[") { depth += 1; return part + line(); }
    if (part === "}" || part === "]") { depth -= 1; return line() + part; }
    return part[0] === '"' ? part : part[0] + part[part.length - 1];
  });
}

// In which an id is one schema, as `:.name:`; nothing is the default one.
const context = (subject) => (subject.match(/^:\.[^:]*:/) || [""])[0];

function frame(subject, current, ...content) {
  const views = [["Versions", "subjects", subject], ["Differences", "subjects", subject, "diff"], ["Compatibility", "subjects", subject, "check"]];
  return [element("h2", {}, subject), tabs(views.map(([text, ...rest]) => [place(...rest), text]), current), ...content];
}

async function versionView(subject, wanted) {
  const numbers = await ask(`${path("subjects", subject, "versions")}?deleted=true`);
  const live = new Set(await ask(path("subjects", subject, "versions")).catch(() => []));
  const number = wanted ? Number(wanted) : Math.max(...(live.size ? live : numbers));
  const [found, users] = await Promise.all([
    ask(`${path("subjects", subject, "versions", number)}?deleted=true&referenceFormat=qualified`),
    ask(path("subjects", subject, "versions", number, "referencedby")).catch(() => []),
  ]);
  return frame(subject, place("subjects", subject),
    element("nav", { "aria-label": "Versions", class: "row" }, numbers.slice().reverse().map((each) =>
      link(place("subjects", subject, "versions", each), `${each}${live.has(each) ? "" : " (deleted)"}`, { "aria-current": each === number ? "page" : null }))),
    facts([
      ["Version", `${number} of ${numbers.length}`],
      ["Id", link(place("ids", found.id, context(subject)), String(found.id))],
      ["Guid", found.guid],
      ["Type", found.schemaType || "AVRO"],
      ["References", (found.references || []).length ? found.references.map((each) =>
        element("div", {}, `${each.name}: `, link(place("subjects", each.subject, "versions", each.version), `${each.subject} ${each.version}`))) : null],
      ["Referred to by", users.length ? users.map((id) => [link(place("ids", id, context(subject)), String(id)), " "]) : null],
      ["Metadata", found.metadata ? element("pre", {}, JSON.stringify(found.metadata, null, 2)) : null],
      ["Rules", found.ruleSet ? element("pre", {}, JSON.stringify(found.ruleSet, null, 2)) : null],
    ]),
    element("pre", { tabindex: "0", "aria-label": "Schema" }, pretty(found.schema)));
}

async function diffView(subject, from, to) {
  const numbers = await ask(`${path("subjects", subject, "versions")}?deleted=true`);
  const newer = Number(to || numbers[numbers.length - 1]);
  const older = Number(from || numbers[Math.max(0, numbers.length - 2)]);
  const go = () => { location.hash = place("subjects", subject, "diff", at("from").value, at("to").value); };
  const differences = await ask(path("subjects", subject, "versions", older, "diff", newer));
  const text = (value) => (value === null || value === undefined ? "" : element("code", {}, typeof value === "string" ? value : JSON.stringify(value)));
  return frame(subject, place("subjects", subject, "diff"),
    element("div", { class: "row", change: go }, choice("From version", "from", numbers, older), choice("To version", "to", numbers, newer)),
    differences.length
      ? table(["What", "Where", "Before", "After"], differences.map((each) =>
          ({ kind: each.kind, cells: [each.kind, element("code", {}, each.path), text(each.before), text(each.after)] })))
      : element("p", { class: "quiet" }, "Nothing that has a meaning differs."));
}

async function checkView(subject) {
  const [config, mode, latest] = await Promise.all([
    ask(`${path("config", subject)}?defaultToGlobal=true`),
    ask(`${path("mode", subject)}?defaultToGlobal=true`),
    ask(path("subjects", subject, "versions", "latest")).catch(() => ({ schema: "", references: [] })),
  ]);
  const result = element("div", { role: "status" });
  const check = async (event) => {
    event.preventDefault();
    const body = { schema: at("schema").value, schemaType: at("type").value, references: latest.references || [] };
    try {
      const said = await ask(`${path("compatibility", "subjects", subject, "versions")}?verbose=true`, { method: "POST", body: JSON.stringify(body) });
      result.replaceChildren(
        element("p", { class: said.is_compatible ? "good" : "bad" }, said.is_compatible ? "Compatible." : "Not compatible:"),
        element("ul", {}, (said.messages || []).map((message) => element("li", {}, message))));
    } catch (error) {
      result.replaceChildren(problem(error));
    }
  };
  return frame(subject, place("subjects", subject, "check"),
    facts([["Level", config.compatibilityLevel], ["Group", config.compatibilityGroup], ["Mode", mode.mode]]),
    element("form", { submit: check },
      element("label", { for: "schema" }, "A schema to be checked; the latest one stands here"),
      element("textarea", { id: "schema", spellcheck: "false" }, pretty(latest.schema)),
      element("div", { class: "row" }, choice("Type", "type", ["AVRO", "JSON", "PROTOBUF"], latest.schemaType || "AVRO"), element("button", { type: "submit" }, "Check"))),
    result);
}

async function idView(id, subject) {
  const of = subject ? `subject=${encodeURIComponent(subject)}` : "";
  const [found, versions] = await Promise.all([ask(`${path("schemas", "ids", id)}?${of}`), ask(`${path("schemas", "ids", id, "versions")}?deleted=true&${of}`)]);
  return [element("h2", {}, `Id ${id}`),
    facts([["Guid", found.guid], ["Type", found.schemaType || "AVRO"],
      ["Registered as", versions.map((each) => element("div", {}, link(place("subjects", each.subject, "versions", each.version), `${each.subject} ${each.version}`)))]]),
    element("pre", { tabindex: "0", "aria-label": "Schema" }, pretty(found.schema))];
}

async function welcome() {
  const [version, config, mode] = await Promise.all([ask("../v1/metadata/version"), ask("../config"), ask("../mode")]);
  return [element("h2", {}, "Schemas"), facts([["Compatibility", config.compatibilityLevel], ["Mode", mode.mode], ["Release", version.version]]),
    element("p", {}, "Choose a subject. ", element("kbd", {}, "/"), " leads to the search, arrows through what it finds."),
    element("p", {}, link("../openapi.json", "The API as OpenAPI"))];
}

let turn = 0;
async function show() {
  const mine = ++turn;
  const [kind, name, view, first, second] = parts();
  let content;
  try {
    if (kind === "ids" && name) content = await idView(name, view);
    else if (kind !== "subjects" || !name) content = await welcome();
    else if (view === "diff") content = await diffView(name, first, second);
    else if (view === "check") content = await checkView(name);
    else content = await versionView(name, first);
  } catch (error) {
    content = [element("h2", {}, name || "Schemas"), problem(error)];
  }
  if (mine !== turn) return; // another place was asked for meanwhile
  at("content").replaceChildren(...content);
  document.title = name ? `${name} · Schema registry` : "Schema registry";
  listed();
}

at("search").addEventListener("input", listed);
at("deleted").addEventListener("change", load);
at("skip").addEventListener("click", (event) => { event.preventDefault(); at("content").focus(); }); // not a place
window.addEventListener("hashchange", () => show().then(() => at("content").focus()));
keys(at("search"), at("subjects"));
ask("../v1/metadata/id").then((found) => { at("facts").textContent = `cluster ${found.id || found.scope?.clusters?.["kafka-cluster"] || ""}`; }).catch(() => {});
load();
show();

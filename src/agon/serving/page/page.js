"use strict";

// Draft, summary and challenge as they stream from /v1/chat/completions. The key, where the server
// wants one, is kept in this page's memory alone.

const field = (id) => document.getElementById(id);
const parts = { draft: field("draft"), summary: field("summary"), challenge: field("challenge") };
let running = null;

function headers() {
  const key = field("key").value;
  const made = { "Content-Type": "application/json" };
  if (key) made.Authorization = `Bearer ${key}`;
  return made;
}

function say(text, bad = false) {
  field("status").textContent = text;
  field("status").classList.toggle("bad", bad);
}

async function failure(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered ${response.status}`;
  }
}

async function loadModels() {
  const response = await fetch("/v1/models", { headers: headers() });
  if (response.status === 401) {
    field("key-field").hidden = false;
    say("This server wants a key.");
    return;
  }
  if (!response.ok) return say(await failure(response), true);
  const select = field("model");
  select.replaceChildren();
  for (const model of (await response.json()).data) {
    const option = new Option(`${model.id} (${model.agon.system})`, model.id);
    option.title = model.agon.about;
    select.add(option);
  }
  say("");
}

function clear() {
  for (const part of Object.values(parts)) part.textContent = "";
  for (const id of ["draft-who", "challenge-who", "answer", "costs"]) field(id).textContent = "";
  field("answer-box").hidden = true;
}

function add(part, policy, text) {
  // A single pass has no rival: its reply stands where a draft does.
  const name = part === "reply" ? "draft" : part;
  if (!(name in parts)) return;
  const shown = parts[name];
  const follows = shown.scrollTop + shown.clientHeight >= shown.scrollHeight - 24;
  shown.append(text);
  if (follows) shown.scrollTop = shown.scrollHeight;
  for (const [other, element] of Object.entries(parts)) {
    element.parentElement.classList.toggle("live", other === name);
  }
  if (name !== "summary") field(`${name}-who`).textContent = `by ${policy}`;
}

function finish(choice) {
  const account = choice.agon;
  if (!account) return;
  field("answer-box").hidden = false;
  if (!account.answered) field("answer").textContent = "none: the reply has no single closed answer block";
  const ended = choice.finish_reason === "length" ? "cut by the token limit" : "done";
  say(account.skipped_challenge ? `${ended}; both drafts agree, so there was no challenge` : ended);
  field("costs").textContent = account.stages
    .map((stage) => `${stage.role} by ${stage.policy}: ${stage.prompt_tokens} tokens read, ${stage.completion_tokens} written`)
    .join(" · ");
}

function take(event) {
  if (event.error) throw new Error(event.error.message);
  for (const choice of event.choices) {
    const { content, reasoning } = choice.delta;
    if (reasoning && choice.agon) add(choice.agon.part, choice.agon.policy, reasoning);
    if (content) field("answer").textContent += content;
    if (choice.finish_reason) finish(choice);
  }
}

async function read(stream) {
  const lines = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await lines.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      if (event.startsWith("data: ") && event !== "data: [DONE]") take(JSON.parse(event.slice(6)));
    }
  }
}

async function solve() {
  const problem = field("problem").value;
  if (running || !problem.trim()) return;
  clear();
  if (!field("model").options.length) await loadModels();
  const seed = field("seed").value.trim();
  if (seed && !/^-?[0-9]+$/.test(seed)) return say("The seed is a whole number, or empty.", true);
  const messages = [{ role: "user", content: problem }];
  const body = { model: field("model").value || "agon", messages, stream: true };
  // The seed is written as it was typed: JavaScript's numbers are exact only up to 2^53.
  let text = JSON.stringify(body);
  if (seed) text = `${text.slice(0, -1)},"seed":${BigInt(seed)}}`;
  running = new AbortController();
  field("go").disabled = true;
  field("stop").disabled = false;
  say("writing …");
  try {
    const options = { method: "POST", headers: headers(), body: text, signal: running.signal };
    const response = await fetch("/v1/chat/completions", options);
    if (response.status === 401) field("key-field").hidden = false;
    if (!response.ok) throw new Error(await failure(response));
    await read(response.body);
  } catch (error) {
    if (error.name === "AbortError") say("stopped");
    else say(error.message, true);
  } finally {
    running = null;
    field("go").disabled = false;
    field("stop").disabled = true;
    for (const element of Object.values(parts)) element.parentElement.classList.remove("live");
  }
}

async function copy(button) {
  const text = field(button.dataset.from).textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without the clipboard's permission, or over plain http: select, for the person to copy.
    getSelection().selectAllChildren(field(button.dataset.from));
    button.textContent = "Selected";
    setTimeout(() => (button.textContent = "Copy"), 1500);
    return;
  }
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = "Copy"), 1500);
}

field("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  solve();
});
field("stop").addEventListener("click", () => running?.abort());
field("key").addEventListener("change", () => loadModels());
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) solve();
  if (event.key === "Escape") running?.abort();
});
for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", () => copy(button));
}
loadModels().catch(() => say("the server does not answer", true));

// Wires the parts together: asking, stopping, and the keyboard.

const answer = new AnswerText((step) => steps.go(step));
const steps = new Steps((step) => answer.mark(step));
const figures = new Figures(offerDrafters);
let running = null; // AbortController of the request that runs

/** Words that are read aloud where somebody listens; hence not at every step. */
function say(words, isBad = false) {
  byId("progress").textContent = "";
  byId("status").textContent = words;
  byId("status").classList.toggle("bad", isBad);
}

function setRunning(controller) {
  running = controller;
  byId("stop").disabled = !controller;
  byId("send").disabled = Boolean(controller);
}

function stop() {
  running?.abort();
}

/** What the form says. */
function wish() {
  const fields = {
    mode: byId("mode").value,
    prompt: byId("prompt").value,
    max_tokens: byId("max-tokens").valueAsNumber,
    temperature: byId("temperature").valueAsNumber,
  };
  const boxes = [...byId("drafters").querySelectorAll("input")];
  const chosen = boxes.filter((box) => box.checked).map((box) => box.value);
  if (chosen.length === boxes.length) return fields;
  return { ...fields, speculation: chosen.length ? { drafters: chosen } : { enabled: false } };
}

async function run() {
  if (running || !byId("form").reportValidity()) return;
  const controller = new AbortController();
  setRunning(controller);
  answer.clear();
  steps.clear();
  byId("tree").replaceChildren(make("p", { className: "muted" }, "Waiting for the first step …"));
  say("Waiting …");
  let first = NaN;
  let ended = "";
  try {
    for await (const chunk of ask(wish(), byId("key").value, controller.signal)) {
      const choice = chunk.choices[0];
      if (!choice) continue;
      if (choice.trees && Number.isNaN(first)) {
        first = performance.now();
        say("Answering …");
      }
      take(choice);
      ended = choice.finish_reason ?? ended;
      byId("progress").textContent = account(first);
    }
    say(`Done${ended === "length" ? ", at the limit of tokens" : ""}: ${account(first)}`);
  } catch (error) {
    if (!(error instanceof ServerError)) {
      controller.abort();
      say("This page has failed; the browser’s console says how.", true);
      throw error;
    }
    if (controller.signal.aborted) say(`Stopped: ${account(first)}`);
    else explain(error);
  } finally {
    setRunning(null);
    if (!steps.steps.length) byId("tree").replaceChildren();
  }
}

function take(choice) {
  const brought = choice.trees ?? [];
  const place = steps.steps.length;
  brought.forEach((step) => steps.add(step));
  answer.add(textOf(choice), brought, place);
}

/** What there is so far, in figures; `first` is when the first step came. */
function account(first) {
  const [numTokens, numSteps] = [steps.numTokens, steps.steps.length];
  if (!numSteps) return "nothing came.";
  const numLater = numTokens - steps.steps[0].committed.length;
  const speed = numLater ? `, ${((performance.now() - first) / numLater).toFixed(1)} ms a token` : "";
  return `${count(numTokens, "token")} in ${count(numSteps, "step")}, ${decimal(numTokens / numSteps)} a step${speed}.`;
}

function explain(error) {
  if (error.status === 401) askForKey();
  say(error.message.charAt(0).toUpperCase() + error.message.slice(1), true);
}

function askForKey() {
  byId("key-field").hidden = false;
  byId("key").focus();
}

async function showModel() {
  try {
    byId("model").textContent = await fetchModel(byId("key").value);
  } catch (error) {
    if (!(error instanceof ServerError)) throw error;
    if (error.status !== 401) return;
    byId("model").textContent = "an API key is needed";
    byId("key-field").hidden = false;
  }
}

function offerDrafters(names) {
  const box = byId("drafters");
  if (!box.hidden || !names.length) return;
  for (const name of names) {
    const drafter = drafters.of(name);
    const input = make("input", { type: "checkbox", value: name, checked: true });
    box.append(make("label", {}, input, " ", tag(drafter), name));
  }
  box.hidden = false;
}

/** Keys of the steps, from the row of bars or where no other control takes them. */
function browse(event) {
  const moves = {
    ArrowLeft: () => steps.go(steps.shown - 1),
    ArrowRight: () => steps.go(steps.shown + 1),
    PageUp: () => steps.go(steps.shown - 10),
    PageDown: () => steps.go(steps.shown + 10),
    Home: () => steps.go(0),
    End: () => steps.newest(),
    " ": () => steps.play(),
    "/": () => byId("prompt").focus(),
  };
  const isFree = event.target === document.body || event.target === byId("bars");
  if (!isFree || !moves[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  moves[event.key]();
}

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") browse(event);
  else if (running) stop();
  else byId("bars").focus();
});
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  run();
});
byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  run();
});
byId("stop").addEventListener("click", stop);
byId("key").addEventListener("change", showModel);
byId("previous").addEventListener("click", () => steps.go(steps.shown - 1));
byId("next").addEventListener("click", () => steps.go(steps.shown + 1));
byId("play").addEventListener("click", () => steps.play());
byId("live").addEventListener("click", () => steps.newest());
byId("as-text").addEventListener("toggle", () => {
  if (steps.shown >= 0) byId("tree-text").textContent = treeAsText(steps.steps[steps.shown]);
});

showModel();
figures.start();
byId("prompt").focus();
byId("prompt").select();

// The steps of an answer: which one is shown, and everything about it.

const LIVE_MS = 160; // between two pictures while steps come faster than one can see
const PLAY_MS = 900; // a step that is played slowly, besides its growth
const BEAT_MS = { live: 6, played: 120 }; // growth by depth of the tree
const TREE_PADDING = 24; // px, of both sides
const CONTEXT_LETTERS = 60;

class Steps {
  /** onShow is called with the index of the step that is shown now. */
  constructor(onShow) {
    this.onShow = onShow;
    this.bars = new Bars((index) => this.go(index));
    this.clear();
  }

  clear() {
    this.steps = [];
    this.text = "";
    this.starts = []; // of each step, in the text
    this.numTokens = 0;
    this.shown = -1;
    this.follows = true;
    this.totals = { drafted: new Map(), accepted: new Map(), phases: {} };
    clearTimeout(this.timer);
    this.timer = null;
    this.isPlaying = false;
    this.bars.clear();
    byId("legend").tBodies[0].replaceChildren();
    byId("phases").replaceChildren();
    byId("context").replaceChildren();
    byId("summary").textContent = "";
    byId("tree").style.minHeight = "";
    this.#mark();
  }

  add(step) {
    this.starts.push(this.text.length);
    this.text += step.committed.join("");
    this.numTokens += step.committed.length;
    this.#count(step);
    this.bars.add(step, this.steps.push(step) - 1);
    if (this.follows && !this.timer) this.timer = setTimeout(() => this.#catchUp(), this.shown < 0 ? 0 : LIVE_MS);
    this.#mark();
  }

  /** Show one step and stay there; past the newest, follow again. */
  go(index) {
    this.#stopPlaying();
    this.follows = index >= this.steps.length - 1;
    this.show(clamp(index, 0, this.steps.length - 1), 0);
  }

  newest() {
    this.go(this.steps.length - 1);
  }

  /** Go through the steps one by one, from the shown one, or from the first behind the newest. */
  play() {
    if (this.isPlaying) return this.#stopPlaying();
    if (!this.steps.length) return;
    clearTimeout(this.timer);
    this.isPlaying = true;
    this.follows = false;
    this.#playFrom(this.shown >= this.steps.length - 1 ? 0 : Math.max(this.shown, 0));
  }

  #playFrom(index) {
    this.show(index, BEAT_MS.played);
    const depth = Math.max(...arrange(this.steps[index]).nodes.map((node) => node.depth));
    this.timer = setTimeout(() => {
      if (index + 1 < this.steps.length) return this.#playFrom(index + 1);
      this.#stopPlaying();
      this.follows = true;
      this.#mark();
    }, PLAY_MS + BEAT_MS.played * depth);
  }

  #stopPlaying() {
    clearTimeout(this.timer);
    this.timer = null;
    this.isPlaying = false;
    this.#mark();
  }

  #catchUp() {
    this.timer = null;
    if (this.follows && this.shown < this.steps.length - 1) this.show(this.steps.length - 1, BEAT_MS.live);
  }

  show(index, beat) {
    if (index < 0 || index >= this.steps.length) return;
    const step = this.steps[index];
    this.shown = index;
    this.bars.show(this.steps, index);
    byId("tree").replaceChildren(drawTree(step, beat, byId("tree").clientWidth - TREE_PADDING));
    keepHeight(byId("tree"));
    byId("summary").textContent = summary(step);
    byId("context").replaceChildren(tail(this.text, this.starts[index]), make("b", {}, oneLine(step.committed.join(""))));
    if (byId("as-text").open) byId("tree-text").textContent = treeAsText(step);
    this.#showLegend();
    showPhases(step.phase_s, this.totals.phases, this.steps.length);
    this.#mark();
    this.onShow(index);
  }

  #mark() {
    const [last, { shown }] = [this.steps.length - 1, this];
    const place = shown < 0 ? "no step yet" : `Step ${shown + 1} of ${last + 1}`;
    this.bars.describe(last + 1, shown, shown < 0 ? place : `${place}: ${summary(this.steps[shown])}`);
    byId("position").textContent = place;
    byId("previous").disabled = shown <= 0;
    byId("next").disabled = shown >= last;
    byId("play").disabled = last < 0;
    byId("play").ariaPressed = String(this.isPlaying);
    byId("live").ariaPressed = String(this.follows && !this.isPlaying);
    const perStep = decimal(this.numTokens / Math.max(last + 1, 1));
    const figures = `: ${perStep} on average, ${this.bars.most} at most${this.bars.excerpt(last + 1)}`;
    byId("bars-note").textContent = `tokens by step${last < 0 ? "" : figures}`;
  }

  #count(step) {
    const { drafted, accepted, phases } = this.totals;
    const taken = new Set(step.accepted);
    step.drafters.forEach((names, node) => {
      for (const name of names) {
        drafters.of(name);
        drafted.set(name, (drafted.get(name) ?? 0) + 1);
        if (taken.has(node)) accepted.set(name, (accepted.get(name) ?? 0) + 1);
      }
    });
    for (const [phase, seconds] of Object.entries(step.phase_s)) phases[phase] = (phases[phase] ?? 0) + seconds;
  }

  #showLegend() {
    const rows = [...this.totals.drafted].sort().map(([name, numDrafted]) => {
      const numAccepted = this.totals.accepted.get(name) ?? 0;
      const drafter = drafters.of(name);
      const meter = make("span", { className: `meter ${drafter.colour}` }, make("i"));
      meter.firstChild.style.width = `${(100 * numAccepted) / numDrafted}%`;
      const share = make("td", { className: "share" }, meter, percent(numAccepted / numDrafted));
      const cells = [make("td", {}, tag(drafter), name), make("td", {}, numDrafted), make("td", {}, numAccepted)];
      return make("tr", {}, ...cells, share);
    });
    byId("legend").tBodies[0].replaceChildren(...rows);
  }
}

const oneLine = (text) => text.replaceAll("\n", "⏎");

/** The last of a text before one place, on one line; a letter is up to two units of it. */
function tail(text, end) {
  const letters = [...oneLine(text.slice(Math.max(0, end - 2 * CONTEXT_LETTERS - 1), end))];
  return (letters.length > CONTEXT_LETTERS ? "…" : "") + letters.slice(-CONTEXT_LETTERS).join("");
}

/** A box that once was high stays so, lest what is below it jump from step to step. */
function keepHeight(box) {
  box.style.minHeight = `${Math.max(parseFloat(box.style.minHeight) || 0, box.offsetHeight)}px`;
}


/** [name, class, seconds] of the parts of a step, in their order. */
function phaseParts(seconds) {
  const of = (phase) => seconds[phase] ?? 0;
  return [
    ["drafters", "p-draft", of("draft")],
    ["merging", "p-merge", of("merge")],
    ["the LLM’s pass", "p-forward", of("forward")],
    ["around it", "p-around", Math.max(of("step") - of("forward"), 0)],
    ["verify, commit", "p-settle", of("verify") + of("commit")],
  ];
}

function showPhases(step, all, numSteps) {
  const mean = Object.fromEntries(Object.entries(all).map(([phase, seconds]) => [phase, seconds / numSteps]));
  const names = phaseParts(step).map(([name, colour, seconds]) =>
    make("li", {}, make("span", { className: `swatch ${colour}` }), name, make("b", {}, milliseconds(seconds))),
  );
  byId("phases").replaceChildren(
    phaseRow("this step", step),
    phaseRow("mean of all", mean),
    make("ul", { className: "phase-names" }, ...names),
  );
}

function phaseRow(title, seconds) {
  const parts = phaseParts(seconds);
  const total = sum(parts.map(([, , part]) => part));
  const words = parts.map(([name, , part]) => `${name} ${milliseconds(part)}`).join(", ");
  const bar = make("span", { className: "phase-bar", role: "img", ariaLabel: `${title}: ${words}` });
  for (const [, colour, part] of parts) {
    const piece = make("i", { className: colour });
    piece.style.width = `${(100 * part) / total}%`;
    bar.append(piece);
  }
  return make("div", { className: "phase-row" }, make("span", {}, title), bar, make("b", {}, milliseconds(total)));
}

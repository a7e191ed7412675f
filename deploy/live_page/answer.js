// The text of the answer. It is the server's, letter by letter; tokens are told apart in it as far
// as they spell it. From a part of a character on, the rest of a chunk is nobody's: whose letter
// is whose is not known there.

class AnswerText {
  /** onPick is called with the index of a step whose text was clicked. */
  constructor(onPick) {
    this.box = byId("answer");
    this.box.addEventListener("click", (event) => {
      const step = event.target.closest("[data-step]")?.dataset.step;
      if (step !== undefined) onPick(Number(step));
    });
    this.clear();
  }

  clear() {
    this.byStep = new Map();
    this.marked = [];
    this.line = null; // the one that grows: a box of its own, lest each token lay out all the text
    this.height = 0; // of the text when it was last followed
    this.box.replaceChildren();
  }

  /** `steps` brought `text`; the first of them has the index `first`. */
  add(text, steps, first) {
    const tokens = steps.flatMap((step, place) =>
      step.committed.map((token, number) => ({ token, step: first + place, names: step.drafters[step.accepted[number]] ?? [] })),
    );
    let left = text;
    for (const { token, step, names } of tokens) {
      if (!left.startsWith(token)) break;
      this.#append(token, step, names);
      left = left.slice(token.length);
    }
    if (left) this.#append(left, first + steps.length - 1, null);
    this.frame ??= requestAnimationFrame(() => this.#follow());
  }

  /** Stay at the end if that is where the reader was. Once a frame, for it lays out all the text. */
  #follow() {
    this.frame = null;
    const wasAtEnd = this.height - this.box.scrollTop - this.box.clientHeight < 24;
    this.height = this.box.scrollHeight;
    if (wasAtEnd) this.box.scrollTop = this.height;
  }

  /** `names` are of those who drafted it, nobody for the LLM's own; null where that is not known. */
  #append(text, step, names) {
    const span = make("span", {}, text);
    if (step >= 0) span.dataset.step = step;
    if (names?.length) span.className = `by ${drafters.of(names[0]).colour}`;
    if (names) span.title = names.length ? `by ${names.join(", ")}` : "the LLM’s own";
    if (!this.line) this.box.append((this.line = make("div")));
    this.line.append(span);
    if (text.endsWith("\n")) this.line = null;
    this.byStep.set(step, [...(this.byStep.get(step) ?? []), span]);
  }

  mark(step) {
    this.marked.forEach((span) => span.classList.remove("now"));
    this.marked = this.byStep.get(step) ?? [];
    this.marked.forEach((span) => span.classList.add("now"));
    if (this.marked.length) keepInView(this.box, this.marked.at(-1));
  }
}

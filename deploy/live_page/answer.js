// The text of the answer. It is the server's, letter by letter; tokens are told apart in it as far
// as they are in it as they stand (not those of a cut-off stop string, or parts of a character).

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
    this.box.replaceChildren();
  }

  /** `steps` brought `text`; the first of them has the index `first`. */
  add(text, steps, first) {
    const isAtEnd = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < 24;
    let left = text;
    steps.forEach((step, place) => {
      step.committed.forEach((token, number) => {
        if (!token || !left.startsWith(token)) return;
        const names = number < step.accepted.length ? step.drafters[step.accepted[number]] : [];
        this.#append(token, first + place, names);
        left = left.slice(token.length);
      });
    });
    if (left) this.#append(left, first + steps.length - 1, []);
    if (isAtEnd) this.box.scrollTop = this.box.scrollHeight;
  }

  #append(text, step, names) {
    const span = make("span", {}, text);
    if (step >= 0) span.dataset.step = step;
    if (names.length) span.className = `by ${drafters.of(names[0]).colour}`;
    span.title = names.length ? `by ${names.join(", ")}` : "the LLM’s own";
    this.box.append(span);
    this.byStep.set(step, [...(this.byStep.get(step) ?? []), span]);
  }

  mark(step) {
    this.marked.forEach((span) => span.classList.remove("now"));
    this.marked = this.byStep.get(step) ?? [];
    this.marked.forEach((span) => span.classList.add("now"));
    if (this.marked.length) keepInView(this.box, this.marked.at(-1));
  }
}

// A card: what one policy says about the key, and the buttons. It is changed in place, so that the focus stays.

import * as words from "./words.js";

const put = (element, text) => {
  if (element.textContent !== text) element.textContent = text;
};

/** What was done about the key, and what that means. */
const DONE = {
  reset: ["reset", ": full budget, no ban or allowance"],
  ban: ["banned", ""],
  allow: ["allowed", ""],
  unban: ["unbanned", ": the used budget stays"],
};

const FORMS = "Write 30s, 15min, 3h or 2days.";

export class Card {
  /** `act` carries out a call and reports it, or throws. `fail` reports what is wrong with a call without a form. */
  constructor(act, fail) {
    this.article = document.getElementById("card").content.firstElementChild.cloneNode(true);
    this.find = (selector) => this.article.querySelector(selector);
    Object.assign(this, { act, fail, isKnown: false });
    this.form = this.find("form");
    for (const button of this.article.querySelectorAll("[data-act]")) button.addEventListener("click", () => this.call(button.dataset.act));
    for (const button of this.article.querySelectorAll("[data-open]")) button.addEventListener("click", () => this.toggle(button.dataset.open));
    this.find(".cancel").addEventListener("click", () => this.toggle(null));
    this.form.addEventListener("keydown", (event) => event.key === "Escape" && this.toggle(null));
    this.form.addEventListener("input", () => this.complain(""));
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      const [span, reason] = ["for", "reason"].map((name) => this.form.elements[name].value.trim());
      if (/^\d+$/.test(span)) this.complain(`${span} what? ${FORMS}`, "for");
      else void this.call(this.form.dataset.act, { for: span, reason });
    });
  }

  /** `isKnown`: whether the key was seen by some policy. */
  show(answer, now, name, isKnown) {
    // They are no part of the answer to an act, and are true nevertheless.
    if (this.answer?.rejections) answer.rejections ??= this.answer.rejections;
    this.answer = answer;
    this.shown = now;
    this.isKnown ||= isKnown;
    this.article.dataset.state = answer.state;
    this.article.setAttribute("aria-label", name);
    put(this.find("h3"), name);
    put(this.find(".says"), words.says(answer, now, this.isKnown));
    put(this.find(".more"), words.more(answer, now));
    const { state, shadow, can_reset: canReset } = answer;
    this.find("[data-act=reset]").hidden = !canReset;
    // The form is for what was seen when it was opened.
    for (const button of this.article.querySelectorAll("[data-open]")) button.hidden = shadow;
    const unban = this.find("[data-act=unban]");
    unban.hidden = !(state === "banned" || state === "allowed");
    put(unban, state === "allowed" ? "End the allowance" : "Unban");
    unban.title = `Ends the ${state === "allowed" ? "allowance" : "ban"}; the used budget stays`;
  }

  /** Opens the form for a ban or an allowance, or closes it. */
  toggle(act) {
    const before = this.form.dataset.act;
    const opens = act && (this.form.hidden || before !== act);
    this.form.hidden = !opens;
    this.form.dataset.act = opens ? act : "";
    for (const button of this.article.querySelectorAll("[data-open]")) button.setAttribute("aria-expanded", String(opens && button.dataset.open === act));
    this.complain("");
    if (opens) {
      const [verb, what] = act === "ban" ? ["Ban", "ban"] : ["Allow", "allowance"];
      const running = this.answer[what]?.by_hand ? this.answer[what] : null;
      put(this.find("form [type=submit]"), running ? `Replace the ${what}` : verb);
      put(this.find(".replaces"), running ? `The present ${what} ends at ${words.clock(this.shown + running.left_ms)}.` : "");
      this.form.elements.reason.focus();
    } else {
      this.find(`[data-open=${before || "ban"}]`).focus();
    }
  }

  /** Says beside the form what is wrong with it, and in which field. */
  complain(text, name) {
    put(this.find(".problem"), text);
    for (const field of this.form.querySelectorAll("input")) field.setAttribute("aria-invalid", String(text !== "" && field.name === name));
    if (text && name) this.form.elements[name].focus();
  }

  async call(act, more) {
    try {
      await this.act(act, this.answer, more, DONE[act]);
    } catch ({ message }) {
      if (more) this.complain(words.problem(message, more.for), ["for", "reason"].find((name) => message.startsWith(`\`${name}\``)));
      else this.fail(message);
      return;
    }
    if (!this.form.hidden) {
      this.form.reset();
      this.toggle(null);
    }
  }
}

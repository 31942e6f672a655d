// A card: what one policy says about the key, and the buttons. It is changed in place, so that the focus stays.

import * as words from "./words.js";

const put = (element, text) => {
  if (element.textContent !== text) element.textContent = text;
};

const DONE = {
  reset: "Reset: it has its whole budget again, and no ban",
  ban: "Banned",
  allow: "Allowed",
  unban: "Unbanned: its budget is as it was",
};

export class Card {
  /** `act(call, body)` carries out a call and returns the new answer, or nothing if it has failed. */
  constructor(act) {
    this.article = document.getElementById("card").content.firstElementChild.cloneNode(true);
    this.find = (selector) => this.article.querySelector(selector);
    this.act = act;
    this.form = this.find("form");
    for (const button of this.article.querySelectorAll("[data-act]")) button.addEventListener("click", () => this.call(button.dataset.act));
    for (const button of this.article.querySelectorAll("[data-open]")) button.addEventListener("click", () => this.toggle(button.dataset.open));
    this.find(".cancel").addEventListener("click", () => this.toggle(null));
    this.form.addEventListener("keydown", (event) => event.key === "Escape" && this.toggle(null));
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      const { for: span, reason } = Object.fromEntries(new FormData(this.form));
      void this.call(this.form.dataset.act, { for: /^\d+$/.test(span.trim()) ? Number(span) : span.trim(), reason });
    });
  }

  show(answer, now, name) {
    this.answer = answer;
    this.article.dataset.state = answer.state;
    this.article.setAttribute("aria-label", name);
    put(this.find("h3"), name);
    put(this.find(".says"), words.says(answer, now));
    put(this.find(".more"), words.more(answer, now));
    const { state, shadow, can_reset: canReset } = answer;
    this.find("[data-act=reset]").hidden = !canReset;
    // The form is for what was seen when it was opened.
    for (const button of this.article.querySelectorAll("[data-open]")) button.hidden = shadow;
    const unban = this.find("[data-act=unban]");
    unban.hidden = !(state === "banned" || state === "allowed");
    put(unban, state === "allowed" ? "End the allowance" : "Unban");
  }

  /** Opens the form for a ban or an allowance, or closes it. */
  toggle(act) {
    const before = this.form.dataset.act;
    const opens = act && (this.form.hidden || before !== act);
    this.form.hidden = !opens;
    this.form.dataset.act = opens ? act : "";
    for (const button of this.article.querySelectorAll("[data-open]")) button.setAttribute("aria-expanded", String(opens && button.dataset.open === act));
    if (opens) {
      this.find("form [type=submit]").textContent = act === "ban" ? "Ban" : "Allow";
      this.form.elements.reason.focus();
    } else {
      this.find(`[data-open=${before || "ban"}]`).focus();
    }
  }

  async call(act, more = {}) {
    const isDone = await this.act(act, this.answer, more, DONE[act]);
    if (isDone && !this.form.hidden) {
      this.form.reset();
      this.toggle(null);
    }
  }
}

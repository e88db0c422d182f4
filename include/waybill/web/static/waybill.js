// Keeps a page up to date, filters the list of streams, and copies commands. Every page works without it.
"use strict";
(() => {
  const body = document.getElementById("fragment");
  const note = document.getElementById("poll-note");
  let etag = "";
  let failures = 0;

  // --- the filter of the streams: kept in the address, so that it survives a reload ---

  const filter = () => {
    const text = document.getElementById("filter-text");
    const health = document.getElementById("filter-health");
    if (!text || !health) return;
    const wanted = text.value.trim().toLowerCase();
    let shown = 0;
    for (const row of document.querySelectorAll("#streams tbody tr")) {
      const isShown = (!wanted || row.dataset.text.toLowerCase().includes(wanted)) && (!health.value || row.dataset.health === health.value);
      row.classList.toggle("hidden", !isShown);
      shown += isShown ? 1 : 0;
    }
    const count = document.getElementById("filter-count");
    if (count) count.textContent = wanted || health.value ? `${shown} shown` : "";
    const query = new URLSearchParams();
    if (wanted) query.set("filter", text.value.trim());
    if (health.value) query.set("health", health.value);
    const search = query.toString();
    history.replaceState(null, "", search ? `?${search}` : location.pathname);
  };

  const restoreFilter = () => {
    const text = document.getElementById("filter-text");
    const health = document.getElementById("filter-health");
    if (!text || !health) return;
    const query = new URLSearchParams(location.search);
    text.value = query.get("filter") || "";
    health.value = query.get("health") || "";
    filter();
  };

  // --- polling ---

  const isBusy = () => {
    const active = document.activeElement;
    if (active && body.contains(active) && active.matches("input, select, textarea, button, summary")) return true;
    return body.querySelector("details.action[open]") !== null;
  };

  const say = (text) => {
    if (note && note.textContent !== text) note.textContent = text;
  };

  const openDetails = () => new Set([...body.querySelectorAll("details[id][open]")].map((each) => each.id));

  const poll = async () => {
    if (document.hidden) return;
    if (isBusy()) {
      say("Not refreshed while a form is open.");
      return;
    }
    const abort = new AbortController();
    const timer = setTimeout(() => abort.abort(), 10000);
    try {
      const answer = await fetch(body.dataset.fragment, {
        headers: etag ? { "If-None-Match": etag } : {},
        credentials: "same-origin",
        signal: abort.signal,
        cache: "no-store",
      });
      if (answer.status === 401) {
        say("You are signed out. Load the page again to sign in.");
        return;
      }
      if (answer.status !== 304 && !answer.ok) throw new Error(`the server answered ${answer.status}`);
      failures = 0;
      say("");
      if (answer.status === 304) return;
      const html = await answer.text();
      etag = answer.headers.get("ETag") || "";
      if (isBusy()) return;
      const open = openDetails();
      body.innerHTML = html; // made by the same templates as the page, which escape everything
      for (const id of open) document.getElementById(id)?.setAttribute("open", "");
      filter();
    } catch (error) {
      failures += 1;
      say(`Airflow does not answer (${failures} times): this page shows what was known before.`);
    } finally {
      clearTimeout(timer);
    }
  };

  // --- copying ---

  const copy = async (button) => {
    const text = button.previousElementSibling.textContent;
    let done = false;
    try {
      await navigator.clipboard.writeText(text);
      done = true;
    } catch {
      const range = document.createRange();
      range.selectNodeContents(button.previousElementSibling);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      done = document.execCommand("copy");
    }
    button.textContent = done ? "Copied" : "Selected";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button.copy");
    if (button) copy(button);
  });
  const filters = document.getElementById("filters");
  if (filters) {
    filters.classList.remove("hidden");
    filters.addEventListener("input", filter);
    filters.addEventListener("submit", (event) => event.preventDefault());
    restoreFilter();
  }
  document.documentElement.classList.add("scripted");
  if (body && body.dataset.fragment) {
    setInterval(poll, 1000 * Number(body.dataset.poll));
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) poll();
    });
  }
})();

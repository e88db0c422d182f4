// Keeps a page up to date, filters the list of streams, and copies commands. Every page works without it.
"use strict";
(() => {
  const body = document.getElementById("fragment");
  const note = document.getElementById("poll-note");
  let etag = "";
  let isAsking = false;
  let lastAnswer = Date.now();
  let received = Date.now();

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

  // --- ages: counted on between two answers, and while none comes ---

  const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]]; // as `rough_duration` of the server

  const duration = (seconds) => {
    let rest = Math.max(0, Math.floor(seconds));
    let first = UNITS.findIndex(([length]) => rest >= length);
    if (first < 0) first = UNITS.length - 1;
    const parts = [];
    for (const [length, name] of UNITS.slice(first, first + 2)) {
      const amount = Math.floor(rest / length);
      rest -= amount * length;
      if (amount || !parts.length) parts.push(`${amount} ${name}`);
    }
    return (UNITS[first][1] === "min" ? parts.slice(0, 1) : parts).join(" ");
  };

  const countOn = () => {
    const passed = (Date.now() - received) / 1000;
    for (const each of body.querySelectorAll("time[data-age]")) {
      const text = `${duration(Number(each.dataset.age) + passed)} ago`;
      if (each.textContent !== text) each.textContent = text;
    }
  };

  // --- what a reader had before the page was refreshed: the place of the keyboard, opened parts, scrolled tables ---

  const KEPT = "a, button, summary, [tabindex]";

  const nameOf = (element) => {
    const details = element.closest("details[data-key]");
    const own = element.getAttribute("href") || element.getAttribute("aria-label") || "";
    return `${element.tagName} ${details ? details.dataset.key : ""} ${own}`;
  };

  const placeOf = (element, selector, name) => {
    const same = [...body.querySelectorAll(selector)].filter((each) => name(each) === name(element));
    return [name(element), same.indexOf(element)];
  };

  const atPlace = ([wanted, number], selector, name) => [...body.querySelectorAll(selector)].filter((each) => name(each) === wanted)[number];

  const keyOf = (details) => details.dataset.key;
  const regionOf = (region) => region.getAttribute("aria-label");

  const replaceBody = (html) => {
    const active = document.activeElement;
    const focused = active && body.contains(active) && active.matches(KEPT) ? placeOf(active, KEPT, nameOf) : null;
    const open = [...body.querySelectorAll("details[data-key][open]")].map((each) => placeOf(each, "details[data-key]", keyOf));
    const scrolled = [...body.querySelectorAll(".box")]
      .filter((each) => each.scrollLeft || each.scrollTop)
      .map((each) => [placeOf(each, ".box", regionOf), each.scrollLeft, each.scrollTop]);
    body.innerHTML = html; // made by the same templates as the page, which escape everything
    received = Date.now();
    for (const place of open) atPlace(place, "details[data-key]", keyOf)?.setAttribute("open", "");
    for (const [place, left, top] of scrolled) atPlace(place, ".box", regionOf)?.scrollTo(left, top);
    if (focused) atPlace(focused, KEPT, nameOf)?.focus({ preventScroll: true });
    filter();
  };

  // --- polling ---

  // Why the page must not change now; "" if it may.
  const whyNot = () => {
    if (body.querySelector("details.action[open] form")) return "Not refreshed while a form is open.";
    const active = document.activeElement;
    if (active && body.contains(active) && active.matches("input, select, textarea")) return "Not refreshed while you type.";
    const selection = getSelection();
    if (selection && !selection.isCollapsed && body.contains(selection.anchorNode)) return "Not refreshed while text is selected.";
    return "";
  };

  const say = (text) => {
    if (note && note.textContent !== text) note.textContent = text;
  };

  const refusal = async (answer) => {
    if (answer.status === 401) return "You are signed out. Load the page again to sign in.";
    let detail = "";
    try {
      detail = (await answer.json()).detail || "";
    } catch {
      // no JSON: an answer of a proxy
    }
    const why = detail ? `: ${detail}` : "";
    if (answer.status === 403) return `You may no longer see this page${why}`;
    if (answer.status === 404) return `There is nothing newer to show, since this page does not exist any more${why}`;
    return `This page shows what was known before: the server answered ${answer.status}${why}`;
  };

  const poll = async () => {
    if (document.hidden || isAsking) return;
    const reason = whyNot();
    if (reason) {
      say(reason);
      return;
    }
    isAsking = true;
    const abort = new AbortController();
    const timer = setTimeout(() => abort.abort(), 10000);
    try {
      const answer = await fetch(body.dataset.fragment, {
        headers: etag ? { "If-None-Match": etag } : {},
        credentials: "same-origin",
        signal: abort.signal,
        cache: "no-store",
      });
      lastAnswer = Date.now();
      if (answer.status !== 304 && !answer.ok) {
        say(await refusal(answer));
        return;
      }
      say("");
      if (answer.status === 304) return;
      const html = await answer.text();
      if (whyNot()) return; // a form was opened meanwhile: the next poll asks again
      etag = answer.headers.get("ETag") || "";
      replaceBody(html);
    } catch {
      say(`Airflow does not answer (last answer ${duration((Date.now() - lastAnswer) / 1000)} ago): this page shows what was known before.`);
    } finally {
      clearTimeout(timer);
      isAsking = false;
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
    setInterval(countOn, 1000);
    setInterval(poll, 1000 * Number(body.dataset.poll));
    document.addEventListener("visibilitychange", () => {
      countOn();
      if (!document.hidden) poll();
    });
  }
})();

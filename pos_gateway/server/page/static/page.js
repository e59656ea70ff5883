// Live parts: one stream a page. A part is replaced if it has changed; the page reads well without this.
"use strict";
(() => {
  // A browser may keep even a page that no cache may: it shows what was true, or was to be shown once.
  addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
  // A time is shown in UTC, as the log has it, and beneath the pointer in the reader's own zone.
  document.addEventListener("pointerover", (event) => {
    const time = event.target.closest && event.target.closest("time[datetime]");
    if (!time || time.title) return;
    const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
    time.title = `${new Date(time.dateTime).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" })} (${zone})`;
  });
  const address = document.body.dataset.live;
  if (!address || !window.EventSource) return;
  const SILENT = 12000, RETRY_AFTER = 3000; // milliseconds without a sign of life; until a retry
  const line = document.getElementById("connection");
  const waiting = new Map(); // parts that came while their text was selected
  let source = null, heard = 0, lostAt = null, timer = null, isOver = false;

  const say = (text) => {
    if (line.textContent !== text) line.textContent = text;
    line.hidden = !text;
  };
  const clock = (date) => date.toISOString().slice(11, 19) + " UTC";

  function lost() {
    lostAt = lostAt || new Date();
    say(`Connection lost since ${clock(lostAt)}: what you see is of then. Reconnecting …`);
  }
  function alive() {
    heard = Date.now();
    lostAt = null;
    say("");
  }
  function over(text, link) {
    isOver = true;
    close();
    say(text);
    if (!link) return;
    const a = document.createElement("a");
    a.href = link;
    a.textContent = "Log in again";
    line.append(" ", a);
  }
  function close() {
    if (source) source.close();
    source = null;
  }
  function later() {
    close();
    clearTimeout(timer);
    timer = setTimeout(open, RETRY_AFTER);
  }
  function login() {
    return "/login?after=" + encodeURIComponent(location.pathname + location.search);
  }

  function open() {
    clearTimeout(timer);
    close();
    if (document.hidden || isOver) return;
    heard = Date.now();
    source = new EventSource(address);
    source.addEventListener("alive", alive);
    source.addEventListener("part", (event) => {
      alive();
      const { part, html } = JSON.parse(event.data);
      show(part, html);
    });
    source.addEventListener("ended", () => over("Your session has ended.", login()));
    source.addEventListener("stops", () => { lost(); later(); });
    source.onerror = async () => {
      lost();
      if (!source || source.readyState !== EventSource.CLOSED) return; // it reconnects by itself
      close();
      const cut = new AbortController();
      let status = 0;
      try {
        status = (await fetch(address, { signal: cut.signal })).status;
      } catch { /* the server is away */ }
      cut.abort();
      if (status === 401) over("Your session has ended.", login());
      else later();
    };
  }

  const isSelected = (part) => {
    const selection = document.getSelection();
    return !!selection && !selection.isCollapsed && selection.containsNode(part, true);
  };

  function show(name, html) {
    const part = document.getElementById("part-" + name);
    if (!part) return;
    if (isSelected(part)) { waiting.set(name, html); return; } // what is being copied stays
    waiting.delete(name);
    const next = document.createElement("template");
    next.innerHTML = html;
    const held = document.createElement("div");
    held.append(next.content.cloneNode(true));
    if (held.innerHTML === part.innerHTML) return;
    const find = remember(part);
    part.replaceChildren(next.content);
    find();
  }

  // Keeps focus, scroll positions and open details over a replacement.
  function remember(part) {
    const focused = part.contains(document.activeElement) ? document.activeElement : null;
    const same = focused && (focused.id ? `#${CSS.escape(focused.id)}`
      : focused.getAttribute("href") ? `[href="${CSS.escape(focused.getAttribute("href"))}"]` : null);
    const nth = same ? [...part.querySelectorAll(same)].indexOf(focused) : -1;
    const scrolled = [...part.querySelectorAll(".scroll")].map((each) => [each.scrollLeft, each.scrollTop]);
    const opened = new Set([...part.querySelectorAll("details[open][id]")].map((each) => each.id));
    return () => {
      part.querySelectorAll(".scroll").forEach((each, number) => {
        if (scrolled[number]) [each.scrollLeft, each.scrollTop] = scrolled[number];
      });
      part.querySelectorAll("details[id]").forEach((each) => { each.open = each.open || opened.has(each.id); });
      const again = same ? part.querySelectorAll(same)[nth] : null;
      if (again) again.focus({ preventScroll: true });
    };
  }

  document.addEventListener("selectionchange", () => {
    for (const [name, html] of waiting) show(name, html);
  });
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  setInterval(() => {
    if (!isOver && !document.hidden && Date.now() - heard > SILENT) { lost(); later(); heard = Date.now(); }
  }, 2000);
  open();
})();

// A hint beside everything that is wider than the window: there is more to the right.

const SCROLLING = ".wide, .matrix";

function markScrolling(node) {
  const isWider = node.scrollWidth > node.clientWidth + 2;
  const hasMore = isWider && node.scrollLeft + node.clientWidth < node.scrollWidth - 2;
  if (hasMore) node.dataset.more = "yes";
  else delete node.dataset.more;
  const before = node.previousElementSibling;
  const hint = before?.classList.contains("hint") ? before : null;
  if (isWider && !hint) node.before(html("p", { class: "hint", "aria-hidden": "true" }, "Swipe for more →"));
  else if (!isWider) hint?.remove();
  if (isWider && hint) hint.classList.toggle("done", !hasMore);
}

function markAllScrolling() {
  document.querySelectorAll(SCROLLING).forEach(markScrolling);
}

let isMarking = 0;
function markSoon() {
  cancelAnimationFrame(isMarking);
  isMarking = requestAnimationFrame(markAllScrolling);
}

addEventListener("scroll", (event) => { if (event.target.matches?.(SCROLLING)) markScrolling(event.target); }, { capture: true, passive: true });
addEventListener("resize", markSoon);
new MutationObserver(markSoon).observe(byId("main"), { childList: true, subtree: true });
markAllScrolling();

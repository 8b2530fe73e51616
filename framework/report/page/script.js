// All that is here is a help: the page says the same without it.
"use strict";
for (const hidden of document.querySelectorAll(".zoom, .copy")) hidden.hidden = false;

for (const time of document.querySelectorAll(".time")) {
  const axis = time.querySelector(".axis");
  let zoom = 1;
  const to = (next, x) => {
    next = Math.min(Math.max(next, 1), 200);
    const name = time.querySelector(".name").offsetWidth;
    const at = (axis.scrollLeft + x - name) / zoom; // of the unzoomed plot
    zoom = next;
    axis.style.setProperty("--zoom", zoom);
    axis.scrollLeft = at * zoom - x + name;
  };
  time.querySelector(".zoom").addEventListener("click", (e) => {
    const by = e.target.dataset.zoom;
    if (by !== undefined) to(by === "0" ? 1 : zoom * by, axis.clientWidth / 2);
  });
  axis.addEventListener("wheel", (e) => {
    if (!e.ctrlKey) return;
    e.preventDefault();
    to(zoom * (e.deltaY < 0 ? 1.25 : 0.8), e.clientX - axis.getBoundingClientRect().left);
  }, { passive: false });
}

document.querySelector(".copy")?.addEventListener("click", async (e) => {
  const text = document.getElementById("issue");
  try {
    await navigator.clipboard.writeText(text.value);
  } catch { // a page of a file has no clipboard in some browsers
    text.select();
    document.execCommand("copy");
  }
  e.target.textContent = "Copied";
});

// What a link leads to may be folded away.
const unfold = () => {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  if (!target) return;
  for (let d = target.closest("details"); d; d = d.parentElement.closest("details")) d.open = true;
  target.scrollIntoView({ block: "center" });
};
addEventListener("hashchange", unfold);
unfold();

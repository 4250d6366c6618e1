// Keys: / to search, j and k from sample to sample, the arrows from page to page. Without this, everything works by links.
document.addEventListener("keydown", (event) => {
  const at = event.target;
  if (event.ctrlKey || event.metaKey || event.altKey || at.closest("input, select, textarea, video, audio, [tabindex]")) return;
  const go = (rel) => document.querySelector(`a[rel~=${rel}]`)?.click();
  if (event.key === "/") {
    const search = document.querySelector("input[type=search]");
    if (search) { event.preventDefault(); search.focus(); search.select(); }
  } else if (event.key === "ArrowRight") go("next");
  else if (event.key === "ArrowLeft") go("prev");
  else if (event.key === "j" || event.key === "k") {
    const keys = [...document.querySelectorAll("a.key")];
    const now = keys.indexOf(document.activeElement);
    const next = event.key === "j" ? Math.min(now + 1, keys.length - 1) : Math.max(now - 1, 0);
    keys[next]?.focus();
  }
});

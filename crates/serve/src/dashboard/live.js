// Looks again every two seconds and replaces the parts that have changed. Pages work without it.
const again = async () => {
  if (document.hidden || !document.querySelector("[data-live]")) return;
  try {
    const response = await fetch(location.href);
    if (!response.ok) return;
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    for (const part of page.querySelectorAll("[data-live]")) {
      const old = document.getElementById(part.id);
      // What was chosen stays chosen.
      for (const box of old?.querySelectorAll("input:checked") ?? [])
        part.querySelector(`input[name="${CSS.escape(box.name)}"][value="${CSS.escape(box.value)}"]`)?.setAttribute("checked", "");
      // Nothing moves away under a reader's cursor or selection.
      if (old && old.innerHTML !== part.innerHTML && !old.contains(document.activeElement)) old.innerHTML = part.innerHTML;
    }
  } catch {
    // The server is gone for now; the page stays as it is.
  }
};
setInterval(again, 2000);

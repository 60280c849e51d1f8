// Named views of a table: its URLs, kept in this browser, up to 20 for each page.
const MAX_VIEWS = 20;

function stored(path) {
  try { return JSON.parse(localStorage.getItem(`views ${path}`) || "{}"); } catch { return {}; }
}

export function openViews(path) {
  const dialog = document.createElement("dialog");
  dialog.className = "help";
  dialog.setAttribute("aria-labelledby", "views-title");
  dialog.innerHTML = '<h2 id="views-title">Views of this table</h2><ul class="plain"></ul><form class="line"><label for="view-name">Save the present filter as</label>'
    + '<input id="view-name" required maxlength="60" autocomplete="off"><button class="main">Save</button></form><p role="status" class="faint"></p><p><button type="button" class="close">Close</button></p>';
  document.body.append(dialog);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.querySelector(".close").onclick = () => dialog.close();
  const [list, form, status] = [dialog.querySelector("ul"), dialog.querySelector("form"), dialog.querySelector("[role=status]")];
  const save = (views) => { localStorage.setItem(`views ${path}`, JSON.stringify(views)); show(); };
  function show() {
    const views = stored(path);
    list.replaceChildren(...Object.entries(views).map(([name, search]) => {
      const [item, link, remove] = [document.createElement("li"), document.createElement("a"), document.createElement("button")];
      link.href = path + search;
      link.textContent = name;
      remove.type = "button";
      remove.className = "plain";
      remove.textContent = "×";
      remove.ariaLabel = `Delete the view ${name}`;
      remove.onclick = () => { const { [name]: _, ...rest } = stored(path); save(rest); };
      item.append(link, " ", remove);
      return item;
    }));
    if (!list.children.length) list.innerHTML = '<li class="faint">No view yet.</li>';
  }
  form.onsubmit = (event) => {
    event.preventDefault();
    const views = { ...stored(path), [form.querySelector("input").value.trim()]: location.search };
    if (Object.keys(views).length > MAX_VIEWS) { status.textContent = `At most ${MAX_VIEWS} views are kept: delete one first.`; return; }
    save(views);
    form.reset();
  };
  show();
  dialog.showModal();
}

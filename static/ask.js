// A question before an action, in a dialog of our own that names what it does.
let dialog = null;

// Resolves with whether the action was confirmed.
export function ask(question, label, isDangerous = false) {
  dialog?.remove();
  dialog = document.createElement("dialog");
  dialog.className = "ask";
  dialog.setAttribute("aria-labelledby", "ask-question");
  dialog.innerHTML = '<form method="dialog"><p id="ask-question"></p><div class="actions"><button value="">Cancel</button><button value="yes"></button></div></form>';
  dialog.querySelector("p").textContent = question;
  const confirm = dialog.querySelector("[value=yes]");
  confirm.textContent = label;
  confirm.className = isDangerous ? "danger" : "main";
  document.body.append(dialog);
  dialog.showModal();
  confirm.focus();
  return new Promise((resolve) => { dialog.onclose = () => { resolve(dialog.returnValue === "yes"); dialog.remove(); }; });
}

// What a button asks: {name} stands for the value of a field of its form.
export function questionOf(form, button) {
  const text = button?.dataset.sure || form.dataset.sure || "";
  return text.replace(/\{(\w+)\}/g, (_, name) => form.elements[name]?.value ?? "");
}

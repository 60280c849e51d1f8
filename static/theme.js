// Before the first paint: the theme and the density that were chosen here; without a choice, the system's theme.
for (const name of ["theme", "density"]) {
  const chosen = localStorage.getItem(name);
  if (chosen) document.documentElement.dataset[name] = chosen;
}

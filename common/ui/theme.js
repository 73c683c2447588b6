// Runs before the first paint: the reader's own choice of theme, else what the system prefers.
try {
  const chosen = localStorage.getItem("evenkeel-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch { /* storage is off: the system decides */ }

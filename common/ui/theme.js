// Runs before the first paint: applies the user's choice of theme; the default is the system preference.
try {
  const chosen = localStorage.getItem("evenkeel-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch { /* no storage: use the system preference */ }

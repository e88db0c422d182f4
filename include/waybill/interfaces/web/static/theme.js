// Sets the theme before anything is drawn: that of Airflow's page around this one, if there is one.
"use strict";
(() => {
  const fromParent = () => {
    try {
      if (window.parent === window) return null;
      const root = window.parent.document.documentElement;
      const named = root.dataset.theme || (root.classList.contains("dark") ? "dark" : root.classList.contains("light") ? "light" : "");
      return named === "dark" || named === "light" ? named : null;
    } catch {
      return null; // a page of another origin
    }
  };
  const apply = () => {
    const theme = fromParent();
    if (theme) document.documentElement.dataset.theme = theme;
  };
  apply();
  try {
    if (window.parent !== window) {
      new MutationObserver(apply).observe(window.parent.document.documentElement, { attributes: true });
    }
  } catch {
    // a page of another origin
  }
})();

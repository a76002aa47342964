// A button that copies a block of code, and excerpts of pages in the search without the words of the theme's buttons.
"use strict";
(() => {
  function add(block) {
    const button = document.createElement("button"), shown = "Copy";
    button.type = "button";
    button.className = "copy-code";
    button.textContent = shown;
    button.addEventListener("click", async () => {
      const code = block.querySelector("pre").cloneNode(true);
      code.querySelectorAll(".linenos").forEach((each) => each.remove());
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch {
        button.textContent = "Not allowed";
      }
      setTimeout(() => { button.textContent = shown; }, 1500);
    });
    block.append(button);
  }
  document.querySelectorAll(".bd-article div.highlight").forEach((block) => {
    if (block.querySelector("pre") && !block.closest(".cell_output, table")) add(block);
  });

  if (typeof Search !== "undefined" && Search.htmlToText) {
    const whole = Search.htmlToText;
    Search.htmlToText = (html, anchor) => {
      const page = new DOMParser().parseFromString(html, "text/html");
      page.querySelectorAll(".bd-header-article, .bd-sidebar-secondary, .onlyprint, .prev-next-footer, .copy-code")
        .forEach((each) => each.remove());
      return whole(page.documentElement.outerHTML, anchor).trim();
    };
  }
})();

// A menu below a button: arrow keys select, Enter runs, Escape closes.

import { h, icon, roving } from "./dom.js";

/** items: [{label, sign, danger, disabled, checked, act}] or null for a separator. Those with `checked` are on or off. */
export function openMenu(anchor, items) {
  const close = () => menu.hidePopover();
  const entry = (item) =>
    item === null
      ? h("div", { class: "sc-menu-line", role: "separator" })
      : h(
          "button",
          {
            type: "button",
            role: item.checked === undefined ? "menuitem" : "menuitemcheckbox",
            "aria-checked": item.checked === undefined ? undefined : String(item.checked),
            tabIndex: -1,
            class: `sc-menu-item ${item.danger ? "danger" : ""}`,
            disabled: Boolean(item.disabled),
            title: item.title,
            onclick: () => {
              close();
              item.act();
            },
          },
          icon(item.sign),
          h("span", { class: "sc-grow" }, item.label),
          item.checked && icon("check"),
        );
  const menu = h("div", { class: "sc sc-menu", role: "menu", popover: "auto" }, items.map(entry));
  roving(menu, ".sc-menu-item:not(:disabled)");
  menu.addEventListener("keydown", (event) => event.stopPropagation());
  menu.addEventListener("toggle", (event) => {
    if (event.newState !== "closed") return;
    if (menu.contains(document.activeElement) || document.activeElement === document.body) anchor.focus();
    anchor.setAttribute("aria-expanded", "false");
    menu.remove();
  });
  document.body.append(menu);
  menu.showPopover();
  anchor.setAttribute("aria-expanded", "true");
  place(menu, anchor.getBoundingClientRect());
  menu.querySelector(".sc-menu-item:not(:disabled)")?.focus();
}

function place(menu, box) {
  const { width, height } = menu.getBoundingClientRect();
  const below = box.bottom + 4 + height < innerHeight;
  menu.style.left = `${Math.max(8, Math.min(box.right - width, innerWidth - width - 8))}px`;
  menu.style.top = `${Math.max(8, below ? box.bottom + 4 : box.top - 4 - height)}px`;
}

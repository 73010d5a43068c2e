/** Dispatches key presses to actions. */
import { usePage } from "../state/page";
import { useSettings } from "../state/settings";
import { ACTIONS } from "./actions";
import { combination, keysOf } from "./keys";
import { leaveField } from "./navigation";

/** Dispatches a key press to at most one action. */
export function onKey(event: KeyboardEvent): void {
  if (event.defaultPrevented || event.isComposing || usePage.getState().dialog !== null) return;
  if (document.querySelector("dialog[open], :popover-open") !== null) return;
  const pressed = combination(event);
  if (pressed === null) return;
  const target = event.target instanceof HTMLElement ? event.target : null;
  const presses = pressed === "Enter" || pressed === " "; // activates the focused element
  if (presses && target?.closest("button, a, summary")) return;
  const writing = (target?.closest("input, textarea, select, [contenteditable]") ?? null) !== null;
  if (writing && event.key === "Escape" && target !== null) return leaveField(target);
  const { keys: own } = useSettings.getState();
  const action = ACTIONS.find((one) => keysOf(one, own).includes(pressed));
  if (action === undefined || action.byBrowser === pressed) return;
  const writes = !/^(Mod\+|F\d)/.test(pressed); // types into the field
  if (writing && (writes || action.anywhere !== true)) return;
  event.preventDefault();
  action.act();
}

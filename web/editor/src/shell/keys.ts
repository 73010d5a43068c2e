/** Turns key presses into actions, and says them as people write them. */
import { ACTIONS } from "./actions";
import { usePage } from "./page";
import { leaveField } from "./walking";

const WORDS: Readonly<Record<string, string>> = {
  Mod: /Mac|iPhone|iPad/.test(globalThis.navigator?.userAgent ?? "") ? "⌘" : "Ctrl",
  ArrowLeft: "←",
  ArrowRight: "→",
  ArrowUp: "↑",
  ArrowDown: "↓",
  Escape: "Esc",
};

/** A combination of keys as people write it. */
export function keyText(keys: string): string {
  return keys
    .split("+")
    .map((key) => WORDS[key] ?? (key.length === 1 ? key.toUpperCase() : key))
    .join(" ");
}

/** Dispatches a key press to at most one action. */
export function onKey(event: KeyboardEvent): void {
  if (event.defaultPrevented || event.isComposing || usePage.getState().dialog !== null) return;
  if (document.querySelector("dialog[open], :popover-open") !== null) return;
  const target = event.target instanceof HTMLElement ? event.target : null;
  if (event.key === "Enter" && target?.closest("button, a, summary") && pressedAlone(event)) return;
  const writing = (target?.closest("input, textarea, select, [contenteditable]") ?? null) !== null;
  if (writing && event.key === "Escape" && target !== null) return leaveField(target);
  const pressed = combination(event);
  const action = ACTIONS.find(({ keys }) => keys.includes(pressed));
  if (action === undefined || action.byBrowser || (writing && action.anywhere !== true)) return;
  event.preventDefault();
  action.act();
}

/** Enter alone presses what has the focus. */
function pressedAlone({ ctrlKey, metaKey, altKey }: KeyboardEvent): boolean {
  return !ctrlKey && !metaKey && !altKey;
}

function combination(event: KeyboardEvent): string {
  const parts = [];
  if (event.ctrlKey || event.metaKey) parts.push("Mod");
  if (event.altKey) parts.push("Alt");
  const letter = event.key.length === 1 && event.key.toLowerCase() !== event.key.toUpperCase();
  if (event.shiftKey && (letter || event.key.length > 1)) parts.push("Shift");
  parts.push(event.key);
  return parts.join("+");
}

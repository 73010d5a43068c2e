/** Dispatches key presses to actions, and formats key combinations. */
import { type Action, ACTIONS } from "./actions";
import { usePage } from "../state/page";
import { type OwnKeys, useSettings } from "../state/settings";
import { leaveField } from "./navigation";

const WORDS: Readonly<Record<string, string>> = {
  Mod: /Mac|iPhone|iPad/.test(globalThis.navigator?.userAgent ?? "") ? "⌘" : "Ctrl",
  ArrowLeft: "←",
  ArrowRight: "→",
  ArrowUp: "↑",
  ArrowDown: "↓",
  Escape: "Esc",
  " ": "Space",
};
const HELD = ["Control", "Meta", "Alt", "AltGraph", "Shift"];

/** Formats a key combination for display. */
export function keyText(keys: string): string {
  return keys
    .split(/\+(?=.)/)
    .map((key) => WORDS[key] ?? (key.length === 1 ? key.toUpperCase() : key))
    .join(" ");
}

/** Returns the keys of an action: the user's, else the default ones. */
export function keysOf({ id, keys }: Action, own: OwnKeys): readonly string[] {
  return own[id] ?? keys;
}

export function useKeys(): (action: Action) => readonly string[] {
  const own = useSettings(({ keys }) => keys);
  return (action) => keysOf(action, own);
}

/** Returns the other actions that use one of these keys. */
export function holders(keys: readonly string[], id: string, own: OwnKeys): readonly Action[] {
  return ACTIONS.filter(
    (action) => action.id !== id && keysOf(action, own).some((key) => keys.includes(key)),
  );
}

/** Assigns keys to an action and removes them from all others. */
export function given(keys: readonly string[], id: string, own: OwnKeys): OwnKeys {
  const taken = holders(keys, id, own).map((action) => [
    action.id,
    keysOf(action, own).filter((key) => !keys.includes(key)),
  ]);
  const next: OwnKeys = { ...own, ...Object.fromEntries(taken), [id]: keys };
  return Object.fromEntries(Object.entries(next).filter(([one, all]) => isChanged(one, all)));
}

function isChanged(id: string, keys: readonly string[]): boolean {
  const action = ACTIONS.find((one) => one.id === id);
  return keys.join(" ") !== action?.keys.join(" ");
}

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

/** Returns the pressed combination as actions write it; null for a modifier key alone. */
export function combination(event: KeyboardEvent): string | null {
  if (HELD.includes(event.key)) return null;
  const parts = [];
  if (event.ctrlKey || event.metaKey) parts.push("Mod");
  if (event.altKey) parts.push("Alt");
  const key = latin(event);
  const [lower, upper] = [key.toLowerCase(), key.toUpperCase()];
  const letter = key.length === 1 && lower !== upper;
  if (event.shiftKey && (letter || key.length > 1)) parts.push("Shift");
  parts.push(letter ? (event.shiftKey ? upper : lower) : key);
  return parts.join("+");
}

interface Keyboard {
  getLayoutMap(): Promise<ReadonlyMap<string, string>>;
}

/** The characters of keys in the user's Latin layout by key code, if the browser provides them. */
let layout: ReadonlyMap<string, string> = new Map();
const { keyboard } = (globalThis.navigator ?? {}) as { readonly keyboard?: Keyboard };
keyboard?.getLayoutMap().then(
  (found) => {
    layout = found;
  },
  () => undefined, // not allowed in an embedded page
);

/**
 * Returns the pressed key. For a non-Latin script, or a character changed by a Mac's Option key,
 * returns the key's character in the user's Latin layout, else in the US layout.
 */
function latin({ key, code, altKey }: KeyboardEvent): string {
  const foreign = altKey ? /^(Dead|[^\x20-\x7f])$/u : /^(?!\p{Script=Latin})\p{L}$/u;
  if (!foreign.test(key)) return key;
  return layout.get(code) ?? /^Key([A-Z])$/.exec(code)?.[1] ?? key;
}

/** Turns key presses into actions, and says them as people write them. */
import { type Action, ACTIONS } from "./actions";
import { usePage } from "./page";
import { type OwnKeys, useSettings } from "./settings";
import { leaveField } from "./walking";

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

/** A combination of keys as people write it. */
export function keyText(keys: string): string {
  return keys
    .split(/\+(?=.)/)
    .map((key) => WORDS[key] ?? (key.length === 1 ? key.toUpperCase() : key))
    .join(" ");
}

/** The keys of an action: those that the person gave it, else its own. */
export function keysOf({ id, keys }: Action, own: OwnKeys): readonly string[] {
  return own[id] ?? keys;
}

export function useKeys(): (action: Action) => readonly string[] {
  const own = useSettings(({ keys }) => keys);
  return (action) => keysOf(action, own);
}

/** The other actions that have one of these keys. */
export function holders(keys: readonly string[], id: string, own: OwnKeys): readonly Action[] {
  return ACTIONS.filter(
    (action) => action.id !== id && keysOf(action, own).some((key) => keys.includes(key)),
  );
}

/** Gives an action these keys, and takes them from all others. */
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
  const presses = pressed === "Enter" || pressed === " "; // what has the focus
  if (presses && target?.closest("button, a, summary")) return;
  const writing = (target?.closest("input, textarea, select, [contenteditable]") ?? null) !== null;
  if (writing && event.key === "Escape" && target !== null) return leaveField(target);
  const { keys: own } = useSettings.getState();
  const action = ACTIONS.find((one) => keysOf(one, own).includes(pressed));
  if (action === undefined || action.byBrowser === pressed) return;
  const writes = !/^(Mod\+|F\d)/.test(pressed); // what would stand in the field
  if (writing && (writes || action.anywhere !== true)) return;
  event.preventDefault();
  action.act();
}

/** What is pressed, as actions name it; null while keys are only held. */
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

/** What keys give in the person's Latin layout, by their place; where the browser tells it. */
let layout: ReadonlyMap<string, string> = new Map();
const { keyboard } = (globalThis.navigator ?? {}) as { readonly keyboard?: Keyboard };
keyboard?.getLayoutMap().then(
  (found) => {
    layout = found;
  },
  () => undefined, // within a page that does not allow it
);

/** What is pressed; in another script, and where a Mac's Option key changes it, what the key gives in
 * the person's Latin layout, or in that of the USA.
 */
function latin({ key, code, altKey }: KeyboardEvent): string {
  const foreign = altKey ? /^(Dead|[^\x20-\x7f])$/u : /^(?!\p{Script=Latin})\p{L}$/u;
  if (!foreign.test(key)) return key;
  return layout.get(code) ?? /^Key([A-Z])$/.exec(code)?.[1] ?? key;
}

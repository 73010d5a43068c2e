/** Reads and formats key combinations, and assigns them to actions. */
import { type OwnKeys, useSettings } from "../state/settings";
import type { Action } from "./action";

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
export function actionsWithKeys(
  actions: readonly Action[],
  keys: readonly string[],
  id: string,
  own: OwnKeys,
): readonly Action[] {
  return actions.filter(
    (action) => action.id !== id && keysOf(action, own).some((key) => keys.includes(key)),
  );
}

/** Assigns keys to an action and removes them from all others. */
export function withKeys(
  actions: readonly Action[],
  keys: readonly string[],
  id: string,
  own: OwnKeys,
): OwnKeys {
  const taken = actionsWithKeys(actions, keys, id, own).map((action) => [
    action.id,
    keysOf(action, own).filter((key) => !keys.includes(key)),
  ]);
  const next: OwnKeys = { ...own, ...Object.fromEntries(taken), [id]: keys };
  return Object.fromEntries(
    Object.entries(next).filter(([one, all]) => isChanged(actions, one, all)),
  );
}

function isChanged(actions: readonly Action[], id: string, keys: readonly string[]): boolean {
  const action = actions.find((one) => one.id === id);
  return keys.join(" ") !== action?.keys.join(" ");
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

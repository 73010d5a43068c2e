/** Holds the user's settings for all browsers, which the server stores. */
import { create } from "zustand";
import { fieldsOf, textOf, textsOf } from "../json";
import { setSetting, setting } from "../server/settings";
import { notify } from "./live";
import { type Look, lookOf, propertiesOf, DEFAULT_LOOK } from "./look";

/** Keys by action; other actions have their default keys. */
export type OwnKeys = Readonly<Record<string, readonly string[]>>;

const FAVOURITES = "katz.favourites";
const KEYS = "katz.keys";
const THEME = "katz.theme";
const USED = "katz.used";
const LOOK = "katz.look";
const NAMES = "katz.names";
const STARS = "katz.stars";
const MAX_NAMES = 200;
const MAX_STARS = 5_000;
const MAX_RECENT_USES = 60; // recent uses that count
/** Milliseconds after the last change of a slider or colour until it is stored. */
const STORE_DELAY_MS = 400;
export const THEMES = ["system", "dark", "light"] as const;
export type Theme = (typeof THEMES)[number];

interface Settings {
  readonly favourites: readonly string[];
  readonly keys: OwnKeys;
  readonly theme: Theme;
  readonly look: Look;
  /** Node types as placed, latest first. */
  readonly used: readonly string[];
  /** Names of workflows that were run, by id, latest last. */
  readonly names: Readonly<Record<string, string>>;
  /** Addresses of starred images, latest last. */
  readonly stars: readonly string[];
  readonly toggle: (name: string) => void;
  readonly star: (addresses: readonly string[], on: boolean) => void;
  readonly setKeys: (keys: OwnKeys) => void;
  readonly setTheme: (theme: Theme) => void;
  readonly setLook: (look: Look) => void;
  readonly use: (name: string) => void;
  readonly name: (workflow: string, name: string) => void;
}

export const useSettings = create<Settings>((set, get) => ({
  favourites: [],
  keys: {},
  theme: "system",
  look: DEFAULT_LOOK,
  used: [],
  names: {},
  stars: [],
  toggle: (name) => {
    const { favourites: names } = get();
    const next = names.includes(name) ? names.filter((one) => one !== name) : [...names, name];
    set({ favourites: next });
    setSetting(FAVOURITES, next).catch(notify);
  },
  star: (addresses, on) => {
    const others = get().stars.filter((one) => !addresses.includes(one));
    const stars = on ? [...others, ...addresses].slice(-MAX_STARS) : others;
    set({ stars });
    setSetting(STARS, stars).catch(notify);
  },
  setKeys: (keys) => {
    set({ keys });
    setSetting(KEYS, keys).catch(notify);
  },
  setTheme: (theme) => {
    set({ theme });
    show(get());
    setSetting(THEME, theme).catch(notify);
  },
  setLook: (look) => {
    set({ look });
    show(get());
    clearTimeout(settling);
    settling = setTimeout(() => setSetting(LOOK, { ...look }).catch(notify), STORE_DELAY_MS);
  },
  use: (name) => {
    const used = [name, ...get().used].slice(0, MAX_RECENT_USES);
    set({ used });
    setSetting(USED, used).catch(notify);
  },
  name: (workflow, name) => {
    const { [workflow]: known, ...others } = get().names;
    if (known === name) return;
    const kept = Object.entries(others).slice(1 - MAX_NAMES);
    const names = Object.fromEntries([...kept, [workflow, name]]);
    set({ names });
    setSetting(NAMES, names).catch(notify);
  },
}));

let settling: ReturnType<typeof setTimeout> | undefined;

function show({ theme, look }: Pick<Settings, "theme" | "look">): void {
  const { style } = document.documentElement;
  style.colorScheme = theme === "system" ? "" : theme;
  for (const [name, value] of propertiesOf(look)) style.setProperty(name, value);
}

/** Loads the settings. A theme or look that the user changes meanwhile takes precedence. */
export async function loadSettings(): Promise<void> {
  const before = useSettings.getState();
  try {
    const [favourites, keys, kept, used, names, look, stars] = await Promise.all(
      [FAVOURITES, KEYS, THEME, USED, NAMES, LOOK, STARS].map(setting),
    );
    const theme = THEMES.find((one) => one === kept) ?? "system";
    const own = Object.entries(fieldsOf(keys)).map(([id, all]) => [id, textsOf(all)] as const);
    useSettings.setState((now) => ({
      favourites: textsOf(favourites),
      keys: Object.fromEntries(own),
      theme: now.theme === before.theme ? theme : now.theme,
      look: now.look === before.look ? lookOf(look ?? null) : now.look,
      used: textsOf(used),
      stars: textsOf(stars),
      names: Object.fromEntries(
        Object.entries(fieldsOf(names)).map(([id, name]) => [id, textOf(name)]),
      ),
    }));
    show(useSettings.getState());
  } catch (error) {
    notify(error);
  }
}

/** Holds what a person set for all browsers; the server keeps it. */
import { create } from "zustand";
import { listOf, textOf } from "../json";
import { setSetting, setting } from "../server/settings";
import { tell } from "./live";

const FAVOURITES = "katz.favourites";
const THEME = "katz.theme";
export const THEMES = ["system", "dark", "light"] as const;
export type Theme = (typeof THEMES)[number];

interface Settings {
  readonly favourites: readonly string[];
  readonly theme: Theme;
  readonly toggle: (name: string) => void;
  readonly setTheme: (theme: Theme) => void;
}

export const useSettings = create<Settings>((set, get) => ({
  favourites: [],
  theme: "system",
  toggle: (name) => {
    const { favourites: names } = get();
    const next = names.includes(name) ? names.filter((one) => one !== name) : [...names, name];
    set({ favourites: next });
    setSetting(FAVOURITES, next).catch(tell);
  },
  setTheme: (theme) => {
    set({ theme });
    show(theme);
    setSetting(THEME, theme).catch(tell);
  },
}));

function show(theme: Theme): void {
  document.documentElement.style.colorScheme = theme === "system" ? "" : theme;
}

export async function loadSettings(): Promise<void> {
  try {
    const [names, kept] = await Promise.all([setting(FAVOURITES), setting(THEME)]);
    const theme = THEMES.find((one) => one === kept) ?? "system";
    useSettings.setState({ favourites: listOf(names).map((name) => textOf(name)), theme });
    show(theme);
  } catch (error) {
    tell(error);
  }
}

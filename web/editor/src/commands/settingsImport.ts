/** Imports the user's settings of ComfyUI's front end from its file. */
import { fieldsOf, parseJson } from "../json";
import { notify, useLive } from "../state/live";
import { lookOf } from "../state/look";
import { useSettings } from "../state/settings";
import type { Action } from "./action";
import { readComfy } from "./comfySettings";
import { withKeys, keysOf } from "./keys";

/** Imports a settings file. `actions`: the actions to which it may assign keys. */
export async function importSettings(file: File, actions: readonly Action[]): Promise<void> {
  let found: ReturnType<typeof readComfy>;
  try {
    found = readComfy(fieldsOf(parseJson(await file.text())));
  } catch {
    return notify(`${file.name} is not a settings file`);
  }
  const settings = useSettings.getState();
  settings.setKeys(
    found.keys.reduce((own, { action: id, key, on }) => {
      const action = actions.find((one) => one.id === id);
      if (action === undefined) return own;
      const others = keysOf(action, own).filter((one) => one !== key);
      return withKeys(actions, on ? [...others, key] : others, id, own);
    }, settings.keys),
  );
  const { catalog } = useLive.getState();
  const liked = found.favourites.filter(
    (name) => catalog.has(name) && !settings.favourites.includes(name),
  );
  liked.forEach(settings.toggle);
  if (found.theme !== null) settings.setTheme(found.theme);
  const colours = { ...settings.look.colours, ...found.colours };
  settings.setLook(lookOf({ text: found.text ?? settings.look.text, colours }));
  const taken = [
    counted(found.keys.length, "shortcut"),
    counted(liked.length, "favourite"),
    counted(Object.keys(found.colours).length, "colour"),
    ...(found.theme === null ? [] : [`the ${found.theme} theme`]),
  ].join(", ");
  const left = found.unknown.length === 0 ? "" : `; unknown: ${found.unknown.join(", ")}`;
  notify(`imported: ${taken}${left}`);
}

function counted(count: number, what: string): string {
  return `${count} ${what}${count === 1 ? "" : "s"}`;
}

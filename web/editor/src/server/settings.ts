/** Asks for and sets what a person chose; kept on the server, by name. */
import type { Json } from "../json";
import { asked, posted } from "./client";

export function setting(name: string): Promise<Json> {
  return asked(`settings/${encodeURIComponent(name)}`);
}

/** Goes on when the page is left meanwhile. */
export async function setSetting(name: string, value: Json): Promise<void> {
  await posted(`settings/${encodeURIComponent(name)}`, value, { keepalive: true });
}

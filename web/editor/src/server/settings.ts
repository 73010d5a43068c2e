/** Reads and writes user settings, which the server stores by name. */
import type { Json } from "../json";
import { asked, posted } from "./client";

export function setting(name: string): Promise<Json> {
  return asked(`settings/${encodeURIComponent(name)}`);
}

/** Writes a setting. The request completes even if the page closes. */
export async function setSetting(name: string, value: Json): Promise<void> {
  await posted(`settings/${encodeURIComponent(name)}`, value, { keepalive: true });
}

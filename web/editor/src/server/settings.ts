/** Asks for and sets what a person chose; kept on the server, by name. */
import { type Json, printJson } from "../json";
import { asked } from "./client";

export function setting(name: string): Promise<Json> {
  return asked(`settings/${encodeURIComponent(name)}`);
}

export async function setSetting(name: string, value: Json): Promise<void> {
  await asked(`settings/${encodeURIComponent(name)}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: printJson(value),
  });
}

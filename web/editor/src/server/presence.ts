/** Reports the open files of this page, and returns the other users of each file. */
import { fieldsOf, textsOf } from "../json";
import { posted } from "./client";
import type * as messages from "./generated/messages";
import { messageFields } from "./messageFields";

/** The names of other users by file; "" for an unnamed one. */
export type Others = Readonly<Record<string, readonly string[]>>;

export async function reportPresence(
  page: string,
  name: string,
  files: readonly string[],
): Promise<Others> {
  const body: messages.PresenceBody = { page, name, files: [...files] };
  const answer = await posted("katz/presence", { ...body }, { keepalive: true });
  const found = fieldsOf(messageFields<messages.OthersThere>(answer).files);
  return Object.fromEntries(Object.entries(found).map(([file, names]) => [file, textsOf(names)]));
}

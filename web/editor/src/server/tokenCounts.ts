/** Requests the token counts of prompts. */
import { asPrompt } from "../document/editorData";
import type { Doc } from "../document/model";
import { fieldsOf, numberFrom, textOf } from "../json";
import { posted } from "./client";
import type * as messages from "./generated/messages";
import { messageFields, readMessages } from "./messageFields";

/** Token counts by node and widget, one for each type of text encoder that reads the text. */
export type TextSizes = Readonly<
  Record<string, Readonly<Record<string, readonly messages.TextSize[]>>>
>;

export async function textSizes(document: Doc, signal: AbortSignal): Promise<TextSizes> {
  const body = { prompt: asPrompt(document) } satisfies messages.TokensBody;
  const answer = messageFields<messages.CountedTexts>(
    await posted("katz/tokens", body, { signal }),
  );
  return mapped(fieldsOf(answer.texts), (texts) =>
    mapped(fieldsOf(texts), (sizes) =>
      readMessages<messages.TextSize, messages.TextSize>(sizes, (size) => ({
        encoder: textOf(size.encoder),
        tokens: numberFrom(size.tokens),
        chunks: numberFrom(size.chunks),
        most: numberFrom(size.most),
      })),
    ),
  );
}

function mapped<One, Other>(fields: Readonly<Record<string, One>>, change: (one: One) => Other) {
  return Object.fromEntries(Object.entries(fields).map(([name, one]) => [name, change(one)]));
}

/** Asks for the server's token over the page, whose state is retained. */
import { useState } from "react";
import { giveToken } from "../server/client";
import { useLive } from "../state/live";
import { loadSettings } from "../state/settings";

export function Token() {
  const tokenRequired = useLive((live) => live.tokenRequired);
  const [words, setWords] = useState("");
  if (!tokenRequired) return null;
  return (
    <form
      className="notice token"
      aria-label="token"
      onSubmit={(event) => {
        event.preventDefault();
        giveToken(String(new FormData(event.currentTarget).get("token"))).then(
          () => {
            setWords("");
            useLive.setState({ tokenRequired: false, notice: "" });
            void loadSettings();
          },
          () => setWords("Wrong token."),
        );
      }}
    >
      <p>
        The server asks for its token. Find it in the file passed with --token-file or in
        KATZ_TOKEN. Your work here is not lost. <b role="status">{words}</b>
      </p>
      <label>
        Token <input name="token" type="password" autoComplete="current-password" required />
      </label>
      <button type="submit">Continue</button>
    </form>
  );
}

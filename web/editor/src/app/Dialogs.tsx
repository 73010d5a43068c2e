import { useState } from "react";
import type { Action } from "../commands/action";
import { ACTIONS } from "../commands/actions";
import { colour } from "../commands/edits/nodes";
import { keyText, useKeys } from "../commands/keys";
import { openTemplate } from "../commands/run";
import { Compare } from "../compare/Compare";
import { Bookmarks } from "../dialogs/Bookmarks";
import { Connect } from "../dialogs/Connect";
import { Find } from "../dialogs/Find";
import { ImageView } from "../dialogs/ImageView";
import { LinkTypes } from "../dialogs/LinkTypes";
import { PreviewOutput } from "../dialogs/PreviewOutput";
import { RenameSubgraph } from "../dialogs/RenameSubgraph";
import { Replace } from "../dialogs/Replace";
import { ConflictChoice, SaveAs } from "../dialogs/Save";
import { Shortcuts } from "../dialogs/Shortcuts";
import { SwapInputs } from "../dialogs/SwapInputs";
import { SweepDialog } from "../dialogs/SweepDialog";
import { MaskEditor } from "../mask/MaskEditor";
import { useTemplates } from "../panels/Start";
import { usePage } from "../state/page";
import { lazyPart } from "../ui/lazyPart";
import { Picker } from "../ui/Picker";

const Appearance = lazyPart(() => import("../dialogs/Appearance").then((part) => part.Appearance));
const Versions = lazyPart(() => import("../dialogs/Versions").then((part) => part.Versions));
const close = () => usePage.setState({ dialog: null });

export function Dialogs() {
  const dialog = usePage((page) => page.dialog);
  const pictures = usePage((page) => page.pictures);
  const compared = usePage((page) => page.compared);
  const masking = usePage((page) => page.masking);
  const conflict = usePage((page) => page.conflict);
  return (
    <>
      {dialog === "palette" && <Palette />}
      {dialog === "templates" && <Templates />}
      {dialog === "keys" && <Shortcuts onClose={close} />}
      {dialog === "connect" && <Connect onClose={close} />}
      {dialog === "find" && <Find />}
      {dialog === "replace" && <Replace onClose={close} />}
      {dialog === "bookmarks" && <Bookmarks onClose={close} />}
      {dialog === "rename-subgraph" && <RenameSubgraph onClose={close} />}
      {dialog === "link-types" && <LinkTypes onClose={close} />}
      {dialog === "swap" && <SwapInputs onClose={close} />}
      {dialog === "sweep" && <SweepDialog onClose={close} />}
      {dialog === "peek" && <PreviewOutput onClose={close} />}
      {dialog === "versions" && <Versions onClose={close} />}
      {dialog === "appearance" && <Appearance onClose={close} />}
      {dialog === "save-as" && <SaveAs />}
      {conflict !== null && <ConflictChoice conflict={conflict} />}
      {dialog === "colour" && <Colours />}
      {masking !== null && <MaskEditor masking={masking} />}
      {pictures !== null && <ImageView pictures={pictures} />}
      {compared !== null && <Compare pair={compared} />}
    </>
  );
}

function Palette() {
  const [query, setQuery] = useState("");
  const keysOf = useKeys();
  const words = query.toLowerCase();
  const place = ({ title }: Action) => title.toLowerCase().indexOf(words);
  const found = ACTIONS.filter((action) => place(action) >= 0).sort(
    (one, other) => Number(place(one) > 0) - Number(place(other) > 0), // prefix matches come first
  );
  return (
    <Picker
      label="All actions"
      query={query}
      onQuery={setQuery}
      entries={found.map((action) => ({
        id: action.id,
        title: action.title,
        detail: keysOf(action).map(keyText).join(", "),
      }))}
      onClose={close}
      onPick={(id) => {
        close();
        ACTIONS.find((action) => action.id === id)?.act();
      }}
    />
  );
}

function Templates() {
  const [query, setQuery] = useState("");
  const words = query.toLowerCase();
  const found = useTemplates().filter(({ title, description }) =>
    `${title} ${description}`.toLowerCase().includes(words),
  );
  return (
    <Picker
      label="Templates"
      query={query}
      onQuery={setQuery}
      entries={found.map(({ name, title, description }) => ({
        id: name,
        title,
        detail: description,
      }))}
      onClose={close}
      onPick={(name) => {
        close();
        void openTemplate(name);
      }}
    />
  );
}

const COLOURS = {
  "theme colour": "",
  red: "#7a3b3b",
  orange: "#7a5230",
  yellow: "#6f6a2f",
  green: "#356a45",
  teal: "#2f6770",
  blue: "#35558a",
  purple: "#5d4480",
  grey: "#565c66",
};

function Colours() {
  const [query, setQuery] = useState("");
  return (
    <Picker
      label="Colour"
      query={query}
      onQuery={setQuery}
      entries={Object.entries(COLOURS)
        .filter(([name]) => name.includes(query.toLowerCase()))
        .map(([title, id]) => ({ id, title, colour: id }))}
      onClose={close}
      onPick={(id) => {
        close();
        colour(id);
      }}
    />
  );
}

/** The page: tabs, toolbar, the active canvas, panels and dialogs. */
import { useEffect, useState } from "react";
import { Canvas } from "../canvas/Canvas";
import { watchChanges } from "../commands/autoQueue";
import { onKey } from "../commands/keyDispatch";
import { openFiles, watchProblems } from "../commands/run";
import { openRequestedCopy } from "../commands/sharedLinks";
import { emptyDocument } from "../document/commands";
import { nodesOf } from "../document/model";
import { FilesPanel } from "../panels/FilesPanel";
import { Gallery } from "../panels/gallery/Gallery";
import { HistoryPanel } from "../panels/HistoryPanel";
import { JobsPanel } from "../panels/JobsPanel";
import { NodeLibrary } from "../panels/NodeLibrary";
import { PlanPanel } from "../panels/PlanPanel";
import { Problems } from "../panels/Problems";
import { Start } from "../panels/Start";
import { Token } from "../panels/Token";
import { HeatLegend } from "../plan/HeatLook";
import { Legend } from "../plan/NodePlan";
import { StepView } from "../plan/StepView";
import { storeOpenDocuments, restore } from "../state/browserStorage";
import { useCanvas } from "../state/canvas";
import { docOf, graphOf, useActive, useDocuments } from "../state/documents";
import { storeDrafts } from "../state/drafts";
import { connect, notify, useFollowed, useLive, watchReports } from "../state/live";
import { usePage } from "../state/page";
import { plansOf, watchPlans } from "../state/planning";
import { watchPresence } from "../state/presence";
import { loadSettings } from "../state/settings";
import { watchTokenCounts } from "../state/tokenCounts";
import { lazyPart } from "../ui/lazyPart";
import { Dialogs } from "./Dialogs";
import { Tabs } from "./Tabs";
import { Toolbar } from "./Toolbar";
import { Trail } from "./Trail";

const DevicesPanel = lazyPart(() =>
  import("../panels/DevicesPanel").then((part) => part.DevicesPanel),
);
const FormPanel = lazyPart(() => import("../panels/FormPanel").then((part) => part.FormPanel));
const ModelsPanel = lazyPart(() =>
  import("../panels/ModelsPanel").then((part) => part.ModelsPanel),
);
const PacksPanel = lazyPart(() => import("../panels/PacksPanel").then((part) => part.PacksPanel));

export function App() {
  const session = useActive();
  const job = useFollowed(({ shown }) => shown);
  const side = usePage((page) => page.side);
  const planned = session?.planned ?? null;
  const open = usePage(({ step }) => (step?.session === session?.id ? step?.node : undefined));
  const step = plansOf(planned, job).find(({ sampler }) => sampler === open);
  const [ready, setReady] = useState(false);

  useEffect(() => {
    const channel = connect();
    void loadSettings();
    const ends = [
      watchProblems(),
      watchPlans(),
      watchTokenCounts(),
      watchReports(),
      watchChanges(),
      watchPresence(),
      () => channel.close(),
    ];
    void restore().then((count) => {
      if (count > 0) notify(`restored ${count} ${count === 1 ? "document" : "documents"}`);
      else useDocuments.getState().open("workflow", emptyDocument());
      ends.push(storeOpenDocuments(), storeDrafts());
      void openRequestedCopy();
      setReady(true);
    });
    window.addEventListener("keydown", onKey);
    window.addEventListener("dragover", allow);
    window.addEventListener("drop", onDrop);
    return () => {
      window.removeEventListener("keydown", onKey);
      window.removeEventListener("dragover", allow);
      window.removeEventListener("drop", onDrop);
      for (const end of ends) end();
    };
  }, []);

  useEffect(() => {
    const changed = session !== null && docOf(session) !== session.saved ? "● " : "";
    const run = Object.values(job?.nodes ?? {}).find(
      ({ phase, maximum }) => phase === "running" && maximum > 1,
    );
    const progress = run ? `${Math.round((100 * run.value) / run.maximum)} % ` : "";
    document.title = `${progress}${changed}${session?.name ?? ""} · Katz Graph`;
  }, [session, job]);

  const empty = session === null || nodesOf(docOf(session)).length === 0;
  return (
    <div className="page">
      <header className="bar">
        <Tabs />
        <ConnectionStatus />
      </header>
      {session !== null && <Toolbar session={session} />}
      <div className="middle">
        <div className="work">
          {session !== null && ready && <Canvas session={session} covered={step !== undefined} />}
          {empty && ready && <Start />}
          {session !== null && <Legend />}
          <HeatLegend />
          {session !== null && session.path.length > 0 && <Trail session={session} />}
          {session !== null && step !== undefined && (
            <StepView
              plan={step}
              title={session.name}
              old={planned?.old === true}
              onClose={() => usePage.setState({ step: null })}
            />
          )}
          {session !== null && <Problems session={session} job={job} />}
        </div>
        {side === "files" && <FilesPanel />}
        {side === "nodes" && <NodeLibrary />}
        {side === "models" && <ModelsPanel />}
        {side === "devices" && <DevicesPanel />}
        {side === "form" && session !== null && <FormPanel session={session} />}
        {side === "packs" && <PacksPanel />}
        {side === "gallery" && <Gallery />}
        {side === "steps" && session !== null && <HistoryPanel session={session} />}
        {side === "jobs" && <JobsPanel />}
        {side === "plan" && (
          <PlanPanel
            planned={planned}
            job={job}
            onStep={(node) => usePage.setState({ step: { session: session?.id ?? "", node } })}
          />
        )}
      </div>
      <Notice />
      <Token />
      <Announcer />
      <Dialogs />
    </div>
  );
}

function allow(event: DragEvent): void {
  event.preventDefault();
}

function onDrop(event: DragEvent): void {
  event.preventDefault();
  const items = [...(event.dataTransfer?.items ?? [])];
  const folders = items
    .flatMap((item) => item.webkitGetAsEntry())
    .filter((one) => one?.isDirectory);
  const names = new Set(folders.map((folder) => folder?.name));
  const files = [...(event.dataTransfer?.files ?? [])].filter(({ name }) => !names.has(name));
  if (files.length > 0) void openFiles(files);
  if (names.size > 0) notify(`${[...names].join(", ")}: a folder; drop its files instead`);
}

function ConnectionStatus() {
  const connection = useLive((live) => live.connection);
  const words = {
    connected: "connected",
    connecting: "connecting …",
    lost: "connection lost, reconnecting",
  };
  return (
    <span className={`line ${connection}`} role="status">
      {words[connection]}
    </span>
  );
}

/** Announces the last step and the selection to screen readers. */
function Announcer() {
  const session = useActive();
  const selected = useCanvas((canvas) => canvas.selected);
  const label = session?.history.present.label ?? "";
  const names =
    session === null
      ? []
      : nodesOf(graphOf(session))
          .filter(({ id }) => selected.has(id))
          .map(({ id, title, type }) => `${title || type} ${id}`);
  const words =
    names.length > 3 ? `${names.length} nodes` : names.length > 0 ? names.join(", ") : "nothing";
  return (
    <p className="unseen" role="status" aria-label="announcements">
      {label}; {words} selected
    </p>
  );
}

function Notice() {
  const notice = useLive((live) => live.notice);
  if (notice === "") return null;
  return (
    <div className="notice" role="alert">
      <span>{notice}</span>
      <button type="button" onClick={() => useLive.setState({ notice: "" })}>
        Dismiss
      </button>
    </div>
  );
}

import "@xyflow/react/dist/style.css";
import { createRoot } from "react-dom/client";
import { App } from "./app/App";
import { askedFor } from "./server/jobLinks";
import { lazily } from "./ui/lazyPart";
import "./style.css";

const root = document.getElementById("root");
const JobPage = lazily(() => import("./jobPage/JobPage").then((part) => part.JobPage));
const job = askedFor("job");
if (root !== null) createRoot(root).render(job === null ? <App /> : <JobPage id={job} />);

/** Why a consumer group is behind, or messages wait in a queue: the causes, as the node names them. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { useAsked } from "../asking";
import { Answered, Tag } from "../parts";
import { Cause, WhyGroup } from "./why";

interface WaitAnswer {
  causes: { clause: string; sentence: string; remedy: string; is_wrong: boolean }[];
}

export function Waits(props: { path: string; command: string; nothing: string }): JSX.Element {
  const asked = useAsked<WaitAnswer>(props.path);
  return (
    <div class="whys" aria-live="polite">
      <Answered asked={asked}>
        {({ causes }) => (
          <>
            {!causes.length && <p><Tag kind="good">Nothing</Tag> {props.nothing}</p>}
            {causes.map((each) => <Cause clause={each.clause} sentence={each.sentence} remedy={each.remedy} wrong={each.is_wrong} command={props.command} />)}
          </>
        )}
      </Answered>
    </div>
  );
}

/** What keeps a partition from its work; the same questions that a client's answer is made of. */
const QUESTIONS = ["WhyNotLeader", "WhyDiskBlocked", "WhyQuarantined", "WhyCreditZero"] as const;

/** A button that asks about the Raft group beneath something, and what it answers. */
export function WhyPartition(props: { group: number; of: string }): JSX.Element {
  return (
    <div class="whys" aria-live="polite">
      <p class="quiet">{props.of} lives in group {props.group}:</p>
      {QUESTIONS.map((each) => <WhyGroup key={each} group={props.group} question={each} />)}
    </div>
  );
}

/** Which of many rows is asked about; pressing the same button again closes the answer. */
export function useWhy<Key>(): [Key | null, (key: Key) => void] {
  const [asked, ask] = useState<Key | null>(null);
  return [asked, (key) => ask((before) => (before === key ? null : key))];
}

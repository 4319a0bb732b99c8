/* Frames: where the members of groups stand that other ranks own (layout.h), for the ops that read them.
 *
 * A frame has a device slot for each member of a group but the rank's own. They are mapped at the members'
 * addresses, so that with the rank's own chunk the group is one range, which one all-gather in place fills. A
 * group's members leave by being replaced, without a copy: their owners have the values. Gradients never
 * stand in frames.
 *
 * Every rank has the same number of frames and puts the same groups into the same ones, since a choice
 * depends only on the ops that have begun, the recording of the ops of a step like this one, the layout and
 * the number of frames. The op that begins replaces, of the groups that it does not read, the one whose next
 * read is farthest in the recording (Belady 1966, "A study of replacement algorithms for a virtual-storage
 * computer"); without a recording the one read longest ago; of equals that in the lowest frame. Groups whose
 * values have ended go first.
 *
 *   values of a trained group   end with the training step, whose update changes them
 *   values of a frozen group    stay
 *
 * An op's begin appends to the roll (roll.h) the gathers of the groups that it reads and that are in no
 * frame. With `ahead` a step's begin appends those of the first recorded op, and an op's begin those of the
 * next one, so that they run beside the op. A gather replaces only groups that neither the open op reads nor
 * the op that it is for, so it waits for no op that waits for it.
 *
 * Owns the frames and the recordings. Calls ops, roll.
 */
#ifndef TIDE_CHUNK_FRAMES_H
#define TIDE_CHUNK_FRAMES_H

#include "chunk/ops.h"
#include "chunk/roll.h"

#define TIDE_FRAME_NONE UINT32_MAX

/* The ops that a step has begun, in their order, and which of them read each group. */
typedef struct tide_op_recording {
    tide_op *ops;
    uint32_t length;
    uint32_t *first; /* for each group, and for the end: the index in `reads` of its first read */
    uint32_t *reads; /* indices in `ops`, sorted by group, then by index */
    bool valid;      /* the recording is complete and its index is built */
} tide_op_recording;

typedef struct tide_group {
    uint32_t frame;     /* where its members are mapped; TIDE_FRAME_NONE */
    bool placed;        /* its values stand in the frame, or will when `gather` is issued */
    bool trained;       /* its values end with a training step */
    uint64_t gather;    /* number in the roll of its last GATHER */
    uint64_t last_read; /* the number of the last op's begin that read it */
    uint64_t wanted;    /* the number of the last choice in which it had to stay */
} tide_group;

typedef struct tide_frames {
    tide_arrays arrays;
    const tide_ops *ops;
    tide_roll *roll;
    bool ahead;
    uint32_t count;
    tide_chunk *mapped; /* for each frame: the group whose members are mapped there; TIDE_CHUNK_NONE */
    uint32_t group_count;
    tide_group *groups;
    tide_op_recording recordings[2]; /* of forward-only passes, of training steps */
    uint32_t op_capacity, read_capacity;
    bool training;  /* the kind of the open or last step */
    bool follows;   /* the open step is like its recording so far */
    bool records;   /* the open step is being recorded */
    uint32_t begun; /* ops that have begun in the open step */
    uint64_t begins, choices;
} tide_frames;

/* Make `count` empty frames, at least tide_frames_needed. `ops` and `roll` must outlive them. NO_MEMORY. A
 * zeroed object may be destroyed, too. */
tide_status tide_frames_create(tide_frames *frames, const tide_ops *ops, tide_roll *roll, uint32_t count,
                               bool ahead);
void tide_frames_destroy(tide_frames *frames);

/* The fewest frames with which every op can begin: the most groups that one reads. With `ahead` the fewest
 * with which gathers can run ahead of any op. */
uint32_t tide_frames_needed(const tide_ops *ops, bool ahead);

/* Do the values of the PARAM chunk's group stand in a frame, their gather being issued? */
bool tide_frames_has(const tide_frames *frames, tide_chunk chunk);

/* Call at these events of the program, in their order; an op's end appends nothing here. */
void tide_frames_step_begin(tide_frames *frames, bool training);
void tide_frames_begin(tide_frames *frames, tide_op op);
void tide_frames_step_end(tide_frames *frames);
/* Call between steps when values have changed on some rank: the values of all groups end. */
void tide_frames_forget(tide_frames *frames);

/* Checks that groups and frames agree, walking all of them. */
bool tide_frames_is_valid(const tide_frames *frames);

#endif

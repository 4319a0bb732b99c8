/* Exports the trainer's params to a folder of Hugging Face weights. */
#include "src/train/trainer_internal.h"

static tide_status get_value(void *context, size_t tensor, uint64_t first, uint64_t count, float *values)
{
    const tide_trainer *trainer = context;
    return tide_decoder_values_get(trainer->model, tensor, TIDE_VALUE_MASTER, first, count, values);
}

static tide_status finish_export(tide_trainer *trainer, const tide_export *whole, tide_export_place *place)
{
    tide_trainer_doing(trainer, TIDE_PHASE_SAVING, "exports", trainer->state.step);
    const tide_status status = tide_export_finish(whole, place, get_value, trainer);
    tide_trainer_doing(trainer, TIDE_PHASE_COMPUTING, "has exported", trainer->state.step);
    return status;
}

tide_status tide_trainer_export(tide_trainer *trainer, const tide_export *export, tide_export_place *place)
{
    tide_export whole = *export;
    whole.model = &trainer->state.model;
    tide_status status = tide_trainer_check_computes(trainer, "export");
    if (status == TIDE_OK)
        status = tide_pool_drain(trainer->pool);
    if (status == TIDE_OK)
        return finish_export(trainer, &whole, place);
    tide_export_abandon(whole.files, place);
    return status;
}
